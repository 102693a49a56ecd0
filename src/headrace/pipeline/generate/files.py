"""A generated log and its truth as files."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.generate.log import log
from headrace.pipeline.generate.parameters import SESSION_GAP_S, Parameters
from headrace.pipeline.generate.site import RISING_FROM, RISING_PATH, RISING_PER_HOUR, RISING_TO
from headrace.pipeline.generate.truth import TABLES, Row, Truth

LOG: Final = "access.log"
TRUTH: Final = "truth"
_SHOW_EVERY: Final = 1000


def write_log(
    parameters: Parameters,
    directory: Path,
    *,
    progress: Callable[[int], None],
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Write `access.log` and `truth/` to a new or empty directory, and return the totals. Raises PipelineError.

    `progress` is called with the number of written lines, every 1,000 lines.
    """
    with truth_files(parameters, directory) as (truth, totals), (directory / LOG).open("wb") as out:
        for number, record in enumerate(log(parameters, truth, stopped), 1):
            out.write(record.line)
            out.write(b"\n")
            if number % _SHOW_EVERY == 0:
                progress(number)
    return totals


@contextmanager
def truth_files(parameters: Parameters, directory: Path) -> Iterator[tuple[Truth, dict[str, Any]]]:
    """Write the truth of a log to the new directory `truth` in `directory`: tables as JSON lines, and `totals.json`.

    The yielded dictionary gets the totals at the end. Raises PipelineError if the directory cannot be used.
    """
    totals: dict[str, Any] = {}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise PipelineError(f"{directory} is not empty: use a new directory")
        place = directory / TRUTH
        place.mkdir()
        with ExitStack() as stack:
            files: dict[str, IO[str]] = {
                name: stack.enter_context((place / f"{name}.jsonl").open("w", encoding="utf-8")) for name in TABLES
            }

            def write(table: str, row: Row) -> None:
                files[table].write(json.dumps(row) + "\n")

            truth = Truth(parameters.partitions, write)
            yield truth, totals
            totals.update(described(parameters, truth))
        (place / "totals.json").write_text(json.dumps(totals, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"cannot write to {error.filename or directory}: {error.strerror}") from error


def described(parameters: Parameters, truth: Truth) -> dict[str, Any]:
    """Return the totals of a complete log, its parameters, and the trend of the rising page."""
    return {
        **truth.close(),
        "session_gap_s": SESSION_GAP_S,
        "rising_page": {
            "page": RISING_PATH,
            "share_at_start": RISING_FROM,
            "added_per_hour": RISING_PER_HOUR,
            "at_most": RISING_TO,
        },
        "parameters": {**asdict(parameters), "visitors": parameters.population},
    }
