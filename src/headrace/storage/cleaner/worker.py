"""The cleaner process, which runs compaction jobs; `process` is the broker's side."""

import gc
import json
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from headrace.errors import KafkaError
from headrace.storage.cleaner.compaction import Cleaner
from headrace.storage.cleaner.job import CleaningJob, LastRecord, SourceSegment
from headrace.storage.cleaner.process import SWAPPED

_NICENESS: Final = 10
_MAX_REPORTED: Final = 100
"""Unreadable batches reported to the broker per log."""


def _job(fields: dict[str, Any]) -> CleaningJob:
    fields["directory"] = Path(fields["directory"])
    fields["segments"] = [SourceSegment(*segment) for segment in fields["segments"]]
    fields["producers"] = {int(producer_id): LastRecord(*last) for producer_id, last in fields["producers"].items()}
    return CleaningJob(**fields)


def main() -> None:
    """Run jobs until standard input ends or the broker, whose process id is the argument, dies."""
    os.nice(_NICENESS)
    broker = int(sys.argv[1])

    def check() -> None:
        if os.getppid() != broker:
            _end_without_broker()

    gc.disable()  # many objects, no cycles
    try:
        _do_jobs(check)
    except BrokenPipeError:
        _end_without_broker()


def _end_without_broker() -> NoReturn:
    """Exit at once, because the broker has died and the next one may already use the log directories.

    A normal exit would fail again when it flushes standard output to the closed pipe.
    """
    os._exit(1)


def _do_jobs(check: Callable[[], None]) -> None:
    for line in sys.stdin.buffer:
        if not line.endswith(b"\n"):
            _end_without_broker()  # an incomplete job
        check()
        try:
            answer = _do(_job(json.loads(line)), check)
        except BrokenPipeError:
            raise
        except OSError as error:
            # the broker needs the number: some errors take the log directory offline
            path = None if error.filename is None else str(error.filename)
            answer = {"error": error.strerror or str(error), "errno": error.errno, "path": path}
        except KafkaError as error:
            answer = {"error": str(error)}
        except (MemoryError, ValueError, LookupError, struct.error) as error:
            # malformed records that should never have been stored; continue with other logs
            answer = {"error": f"{type(error).__name__}: {error}"}
        _answer(answer)


def _do(job: CleaningJob, check: Callable[[], None]) -> dict[str, Any]:
    cleaner = Cleaner(job, check)
    cleaner.build_map()
    for group in cleaner.groups():
        _answer({"cleaned": cleaner.clean(group)})
        if sys.stdin.buffer.readline() != SWAPPED:
            _end_without_broker()
    return {"end_offset": cleaner.end_offset, "unreadable": list(cleaner.unreadable.items())[:_MAX_REPORTED]}


def _answer(fields: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
