"""Compaction in a process of its own: the side that does the jobs. The other is `cleaner_process`."""

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
_MOST_TOLD: Final = 100
"""Batches that cannot be read of which the broker is told."""


def _job(fields: dict[str, Any]) -> CleaningJob:
    fields["directory"] = Path(fields["directory"])
    fields["segments"] = [SourceSegment(*each) for each in fields["segments"]]
    fields["producers"] = {int(producer_id): LastRecord(*each) for producer_id, each in fields["producers"].items()}
    return CleaningJob(**fields)


def main() -> None:
    """Do jobs until there are no more, or no broker that gives them."""
    os.nice(_NICENESS)
    broker = os.getppid()

    def check() -> None:
        if os.getppid() != broker:
            _end_without_broker()

    gc.disable()  # many objects, and none in a cycle
    try:
        _do_jobs(check)
    except BrokenPipeError:
        _end_without_broker()


def _end_without_broker() -> NoReturn:
    """End at once and say nothing: the broker has died, and leaves its log directories to the next one.

    What is still to be written would meet the closed pipe again on the way out of the interpreter.
    """
    os._exit(1)


def _do_jobs(check: Callable[[], None]) -> None:
    for line in sys.stdin.buffer:
        if not line.endswith(b"\n"):
            _end_without_broker()  # in the middle of the job
        try:
            answer = _do(_job(json.loads(line)), check)
        except BrokenPipeError:
            raise
        except (KafkaError, OSError) as error:
            answer = {"error": str(error)}
        except (MemoryError, ValueError, LookupError, struct.error) as error:
            # of records that no client should have been able to write; there are other logs
            answer = {"error": f"{type(error).__name__}: {error}"}
        _answer(answer)


def _do(job: CleaningJob, check: Callable[[], None]) -> dict[str, Any]:
    cleaner = Cleaner(job, check)
    cleaner.build_map()
    for group in cleaner.groups():
        _answer({"cleaned": cleaner.clean(group)})
        if sys.stdin.buffer.readline() != SWAPPED:
            _end_without_broker()
    return {"end_offset": cleaner.end_offset, "unreadable": list(cleaner.unreadable.items())[:_MOST_TOLD]}


def _answer(fields: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
