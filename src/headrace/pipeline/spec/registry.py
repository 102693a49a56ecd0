"""Find jobs in installed distributions (entry point group `headrace.jobs`) and in given Python files."""

import importlib.util
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from headrace import extras
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import params
from headrace.pipeline.spec.jobs import Job, Topic, job_of

GROUP: Final = "headrace.jobs"


class Jobs(Mapping[str, Job]):
    """Jobs by name, in data-flow order: a job follows the one that writes its source."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._origins: dict[str, str] = {}

    def __getitem__(self, name: str) -> Job:
        return self._jobs[name]

    def __iter__(self) -> Iterator[str]:
        producers = {table: job for job in self._jobs.values() for table in job.tables}
        return iter(sorted(self._jobs, key=lambda name: _depth(self._jobs[name], producers, len(producers))))

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job, origin: str) -> None:
        """Add a job. Raises PipelineError for an invalid trigger, and if another job has its name.

        Adding the same job again does nothing.
        """
        try:
            params.seconds_of(job.trigger)
        except ValueError:
            raise PipelineError(
                f"job {job.name}: the trigger must be an interval such as '10 seconds', not '{job.trigger}'"
            ) from None
        other = self._jobs.setdefault(job.name, job)
        if other is not job:
            raise PipelineError(
                f"two jobs are called '{job.name}': one from {self._origins[job.name]}, one from {origin}. Rename one"
            )
        self._origins.setdefault(job.name, origin)

    def origin(self, name: str) -> str:
        """Return the distribution or the file that a job comes from."""
        return self._origins[name]

    def named(self, name: str) -> Job:
        """Return a job. Raises PipelineError for an unknown name, and suggests a similar one."""
        if name not in self._jobs:
            raise PipelineError(params.unknown("job", name, self._jobs))
        return self._jobs[name]


def find(files: Iterable[Path] = ()) -> Jobs:
    """Return the jobs in all installed distributions and in `files`.

    Raises ModuleNotFoundError if an optional package of Headrace is missing. Raises PipelineError if an entry point or
    a file cannot be imported, if a file does not exist or contains no job, and as `Jobs.add` does.
    """
    jobs = Jobs()
    for point in sorted(entry_points(group=GROUP), key=_headrace_first):
        origin = _distribution(point)
        what = f"the entry point '{point.name} = {point.value}' of {origin}"
        found = _imported(what, point.load)
        if not isinstance(found, ModuleType) and job_of(found) is None:
            raise PipelineError(
                f"{what} refers to neither a module nor a job: change it to a module with jobs, or decorate the "
                "function with @job"
            )
        for job in _jobs_of(found):
            jobs.add(job, origin)
    for path in dict.fromkeys(path.expanduser().resolve() for path in files):
        if not path.is_file():
            raise PipelineError(f"--from {path}: there is no such file")
        own = _jobs_of(_imported(str(path), _importer(path)))
        if not own:
            raise PipelineError(f"{path} contains no job: decorate a function with @job")
        for job in own:
            jobs.add(job, str(path))
    return jobs


def _depth(job: Job, producers: Mapping[str, Job], most: int) -> int:
    """Return the number of jobs between a topic and this one. `most` ends the recursion if jobs form a cycle."""
    if isinstance(job.source, Topic) or job.source.name not in producers or not most:
        return 0
    return 1 + _depth(producers[job.source.name], producers, most - 1)


def _headrace_first(point: EntryPoint) -> tuple[bool, str, str]:
    name = _distribution(point)
    return not name.startswith("headrace "), name, point.name


def _distribution(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown distribution"


def _imported(what: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        if extras.missing(error) is not None:
            raise
        raise PipelineError(f"cannot import {what}: {error}") from error
    except PipelineError as error:
        raise PipelineError(f"{what}: {error}") from None
    except SystemExit as error:
        advice = "move that call below `if __name__ == '__main__':`"
        raise PipelineError(f"cannot import {what}: the import calls sys.exit({error.code!r}); {advice}") from error
    except Exception as error:
        raise PipelineError(f"cannot import {what}: {type(error).__name__}: {error}") from error


def _importer(path: Path) -> Callable[[], ModuleType]:
    def load() -> ModuleType:
        # Two files may have the same name, and a file may have the name of an installed module.
        name = f"headrace_jobs_{path.stem}_{zlib.crc32(bytes(path)):08x}"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise PipelineError("not a Python file: its name must end in .py")
        if str(path.parent) not in sys.path:
            # Like `python FILE`, but last, so that files there do not shadow installed modules.
            sys.path.append(str(path.parent))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
        return module

    return load


def _jobs_of(found: Any) -> Sequence[Job]:
    """Return the jobs of a module in order, including imported ones, or the job of a decorated function."""
    objects = vars(found).values() if isinstance(found, ModuleType) else [found]
    return [job for item in objects if callable(item) and (job := job_of(item)) is not None]
