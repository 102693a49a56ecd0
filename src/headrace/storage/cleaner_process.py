"""Compaction in a process of its own: the broker's side, which gives it jobs, and the other, which does them.

A cleaner is all Python and would take the interpreter's lock from the event loop for milliseconds at a time: see
docs/decisions/012-compaction-in-a-process.md. The two talk in lines of JSON: a job; `cleaned` for a group of segments,
answered by `swapped`; `end_offset` or `error`. The process ends with its standard input, so none is left behind by a
broker that dies.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import IO, Any, Final

from headrace.errors import KafkaError
from headrace.storage.cleaner import CleanedGroup, Cleaner, CleaningJob, LastRecord, SourceSegment
from headrace.storage.log import CleaningAbortedError

_NICENESS: Final = 10
_SWAPPED: Final = b"swapped\n"


class CleaningFailedError(Exception):
    """A log could not be compacted; the message says why and what to do."""


class CleanerProcess:
    """Started by the first job, used again for the next ones, ended by `close` or a failure."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._closed = False

    def clean(self, job: CleaningJob, swap: Callable[[CleanedGroup], None]) -> int:
        """Do the job, calling `swap` for each group as soon as it is written; returns the end of what is clean now.

        Blocks. Raises CleaningFailedError, CleaningAbortedError after `close`, OSError, and what `swap` raises.
        """
        process = self._start()
        try:
            _write_line(process.stdin, json.dumps(_job_fields(job)).encode() + b"\n")
            while True:
                line = process.stdout.readline() if process.stdout else b""
                if not line:
                    status = process.wait()
                    if self._closed:
                        raise CleaningAbortedError("the broker is stopping")
                    raise CleaningFailedError(f"the cleaner process ended with status {status}")
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise CleaningFailedError(answer["error"])
                if "end_offset" in answer:
                    return int(answer["end_offset"])
                base_offsets, *numbers = answer["cleaned"]
                swap(CleanedGroup(tuple(base_offsets), *numbers))
                _write_line(process.stdin, _SWAPPED)
        except BaseException:
            self.end()
            raise

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._closed:
                raise CleaningAbortedError("the broker is stopping")
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", __name__],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # an interrupt from the keyboard is for the broker
                )
            return self._process

    def end(self) -> None:
        """Let go of the process and its memory; the next job starts another."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    pass

    def close(self) -> None:
        """End the process, and a job that it is at, for good."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()


def _write_line(pipe: IO[bytes] | None, line: bytes) -> None:
    if pipe is None:
        raise CleaningFailedError("the cleaner process has no standard input")
    try:
        pipe.write(line)
        pipe.flush()
    except BrokenPipeError:
        raise CleaningFailedError("the cleaner process has died") from None


def _job_fields(job: CleaningJob) -> dict[str, Any]:
    return {**asdict(job), "directory": str(job.directory)}


def _job(fields: dict[str, Any]) -> CleaningJob:
    fields["directory"] = Path(fields["directory"])
    fields["segments"] = [SourceSegment(*each) for each in fields["segments"]]
    fields["producers"] = {int(producer_id): LastRecord(*each) for producer_id, each in fields["producers"].items()}
    return CleaningJob(**fields)


def main() -> None:
    """Do jobs until there are no more."""
    os.nice(_NICENESS)
    broker = os.getppid()

    def check() -> None:
        if os.getppid() != broker:
            sys.exit("the broker has died: leaving its log directories to the next one")

    gc.disable()  # millions of objects, and none in a cycle
    for line in sys.stdin.buffer:
        try:
            answer = _do(_job(json.loads(line)), check)
        except (KafkaError, OSError, MemoryError) as error:
            answer = {"error": str(error) or type(error).__name__}
        _answer(answer)


def _do(job: CleaningJob, check: Callable[[], None]) -> dict[str, Any]:
    cleaner = Cleaner(job, check)
    cleaner.build_map()
    for group in cleaner.groups():
        _answer({"cleaned": cleaner.clean(group)})
        if sys.stdin.buffer.readline() != _SWAPPED:
            sys.exit()
    return {"end_offset": cleaner.end_offset}


def _answer(fields: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(fields).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
