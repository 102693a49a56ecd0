"""The directory of a demo: the broker's log, the lake, Spark's log, and the demo's options."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from headrace.pipeline.errors import PipelineError

_FILE: Final = "demo.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options that must stay the same when a demo continues. Paths are absolute; None if an option was not given."""

    input: str | None
    lake: str
    bootstrap: str | None
    prefix: str


class Place:
    """The directory of a new demo, or of an earlier demo that continues."""

    def __init__(self, directory: Path, options: Options) -> None:
        """Create `directory` if it does not exist. Otherwise, read the options of the demo in it.

        Raises PipelineError if they differ from `options`, if the directory contains files but no demo, or if it cannot
        be used.
        """
        self.directory = directory
        self._options = options
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self.is_new = not any(directory.iterdir())
            found = None if self.is_new else _read(directory)
        except OSError as error:
            raise PipelineError(f"cannot use {directory} for the demo's data: {error.strerror}") from None
        if self.is_new:
            return
        if found is None:
            raise PipelineError(f"{directory} is not empty: use a new directory, or that of an earlier demo")
        if found != options:
            changed = [name for name, value in asdict(found).items() if value != getattr(options, name)]
            raise PipelineError(
                f"the demo in {directory} was started with {_words(found, changed)}: "
                "use the same options, or a new directory"
            )

    @property
    def broker(self) -> Path:
        return self.directory / "broker"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def record(self) -> None:
        """Store the options, so that the demo can continue here."""
        (self.directory / _FILE).write_text(json.dumps(asdict(self._options)), encoding="utf-8")


def _read(directory: Path) -> Options | None:
    path = directory / _FILE
    if not path.is_file():
        return None
    try:
        return Options(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return None


def _words(found: Options, changed: list[str]) -> str:
    values = ((name, getattr(found, name)) for name in changed)
    return " and ".join(f"--{name} ({'not given' if value is None else value or 'empty'})" for name, value in values)
