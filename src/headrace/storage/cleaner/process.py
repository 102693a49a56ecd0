"""The broker's side of the cleaner process, whose code is `worker`.

In the broker, a cleaner would hold the GIL for milliseconds at a time: see
docs/decisions/012-compaction-in-a-process.md. The broker sends a job as a line of JSON. The process replies with a line
`cleaned` for every group of segments, and waits for `swapped` after each; its last line is `end_offset` or `error`. It
ends when its standard input closes, so it cannot outlive the broker.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import IO, Any, Final

from headrace.storage.cleaner.job import CleanedGroup, CleanedLog, CleaningJob
from headrace.storage.log.log import CleaningAbortedError

SWAPPED: Final = b"swapped\n"
_WORKER: Final = "headrace.storage.cleaner.worker"


class CleaningFailedError(Exception):
    """A log could not be compacted; the message has the reason and the remedy."""


class CleanerProcess:
    """A process that the first job starts and later jobs reuse, until `end`, `close` or a failure."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._closed = False
        self._has_job = False

    def clean(self, job: CleaningJob, swap: Callable[[CleanedGroup], None]) -> CleanedLog:
        """Run the job, and call `swap` for every group when it is written. Blocks.

        Raises CleaningFailedError, CleaningAbortedError after `close`, OSError if the job could not read or write the
        log, and the exceptions of `swap`.
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
                    raise _error_of(answer, job.directory)
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
                try:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", _WORKER, str(os.getpid())],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        start_new_session=True,  # only the broker handles Ctrl-C
                        # numpy's linear algebra, which is not used, would start a thread per processor
                        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                    )
                except OSError as error:  # not an error of the log's disk
                    raise CleaningFailedError(f"the cleaner process cannot be started: {error}") from error
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


def _error_of(answer: Mapping[str, Any], directory: Path) -> CleaningFailedError | OSError:
    """Return an OSError only if it may be one of the log's disk: the process also reads its own program."""
    path = answer.get("path")
    if answer.get("errno") is None or (path is not None and not Path(path).is_relative_to(directory)):
        return CleaningFailedError(answer["error"] if path is None else f"{path}: {answer['error']}")
    return OSError(answer["errno"], answer["error"], path)


def _job_fields(job: CleaningJob) -> dict[str, Any]:
    return {**asdict(job), "directory": str(job.directory)}
