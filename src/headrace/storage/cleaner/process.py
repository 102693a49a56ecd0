"""The broker's side of the cleaner process, whose code is `worker`.

In the broker, a cleaner would hold the GIL for milliseconds at a time: see
docs/decisions/012-compaction-in-a-process.md. The protocol is lines of JSON: a job; `cleaned` for a group of segments,
answered by `swapped`; finally `end_offset` or `error`. The process ends when its standard input closes, so it cannot
outlive the broker.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from threading import Lock
from typing import IO, Any, Final

from headrace.storage.cleaner.job import CleanedGroup, CleanedLog, CleaningJob
from headrace.storage.log.log import CleaningAbortedError

SWAPPED: Final = b"swapped\n"
_WORKER: Final = "headrace.storage.cleaner.worker"


class CleaningFailedError(Exception):
    """A log could not be compacted; the message has the reason and the remedy."""


class CleanerProcess:
    """A process that is started by the first job, reused by later ones, and ended by `close` or a failure."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._closed = False
        self._has_job = False

    def clean(self, job: CleaningJob, swap: Callable[[CleanedGroup], None]) -> CleanedLog:
        """Run the job, and call `swap` for every group when it is written. Blocks.

        Raises CleaningFailedError, CleaningAbortedError after `close`, OSError, and the exceptions of `swap`.
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
                    raise CleaningFailedError(
                        f"the cleaner process ended with status {status} (-9: killed, usually for lack of memory)"
                    )
                answer: dict[str, Any] = json.loads(line)
                if "error" in answer:
                    raise CleaningFailedError(answer["error"])
                if "end_offset" in answer:
                    return CleanedLog(int(answer["end_offset"]), dict(answer["unreadable"]))
                base_offsets, *numbers = answer["cleaned"]
                swap(CleanedGroup(tuple(base_offsets), *numbers))
                _write_line(process.stdin, SWAPPED)
        except BaseException:
            self.end()
            raise
        finally:
            with self._lock:
                self._has_job, was_closed = False, self._closed
            if was_closed:
                self.end()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._closed:
                raise CleaningAbortedError("the broker is stopping")
            if self._process is not None and self._process.poll() is not None:
                _close_pipes(self._process)
                self._process = None
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", _WORKER],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,  # only the broker handles Ctrl-C
                    # numpy's linear algebra, which is not used, would start a thread per processor
                    env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                )
            self._has_job = True
            return self._process

    def end(self) -> None:
        """End the process to free its memory; the next job starts another."""
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            process.kill()
            process.wait()
        _close_pipes(process)

    def close(self) -> None:
        """End the process and its current job, and refuse further jobs."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()
            is_idle = not self._has_job
        if is_idle:
            self.end()  # otherwise the job does that


def _close_pipes(process: "subprocess.Popen[bytes]") -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            try:
                pipe.close()
            except BrokenPipeError:
                pass


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
