"""Copies a log to another log directory while it is in use (KIP-113).

`plan` lists the data to copy, in the thread that appends; `copy` copies it in another thread. Each round of
both leaves less to copy, until `log_switch` can copy the rest between two appends.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID, uuid4

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.partition_dir import MAX_NAME, future_name
from headrace.storage.dirs.partition_metadata import write_topic_id
from headrace.storage.files.atomic_file import remove_tree, sync_directory
from headrace.storage.log.leader_epochs import FILE_NAME as LEADER_EPOCHS_FILE
from headrace.storage.log.log import Log
from headrace.storage.log.producers.producer_snapshot import snapshots
from headrace.storage.log.segment_files import LOG_SUFFIX, suffix_of

LAST_BYTES: Final = 256 * 1024
"""Maximum bytes to copy while appends are blocked, which takes a fraction of a millisecond."""
_CHUNK_BYTES: Final = 1024 * 1024
_LONGEST_PAUSE_S: Final = 0.5


class MoveAbortedError(Exception):
    """The log was deleted, the move was replaced by another one, or the broker is stopping."""


class MoveFailedError(Exception):
    """A disk error in the log directory `directory`."""

    def __init__(self, directory: Path, error: OSError) -> None:
        super().__init__(f"{directory}: {error}")
        self.directory = directory
        self.error = error


class _File(NamedTuple):
    """The bytes of a file from `start` to `end`, exclusive."""

    source: Path
    start: int
    end: int


class Plan(NamedTuple):
    """`files` to copy, `stale` files to remove from the copy, and the end offset of the copy afterwards."""

    files: list[_File]
    stale: list[str]
    end_offset: int

    @property
    def size(self) -> int:
        """Bytes to copy."""
        return sum(file.end - file.start for file in self.files)


class LogMove:
    """Moves a log to the log directory `target`; `future` is the directory of the copy."""

    def __init__(self, moved: Log, topic_id: UUID, target: Path) -> None:
        """Name the copy. Raises KafkaError(invalid_topic_exception) if the topic name leaves no room for its suffix."""
        self.log = moved
        self.target = target
        self.identity = uuid4().hex
        name = future_name(moved.topic_partition, self.identity)
        if len(name) > MAX_NAME:
            raise KafkaError(
                ErrorCode.invalid_topic_exception,
                f"{moved.topic_partition} cannot be moved: the name of the copy would exceed {MAX_NAME} bytes",
            )
        self.future = target / name
        self.replaced = moved.directory
        """The directory that the copy replaces."""
        self.synced_offset = 0
        """All records before this offset are on disk in the copy."""
        self.abort_reason = ""
        self._topic_id = topic_id
        self._copied: dict[str, int] = {}
        self._truncations = moved.state.truncations

    @property
    def size(self) -> int:
        """Copied bytes of log files."""
        return sum(size for name, size in tuple(self._copied.items()) if suffix_of(name) == LOG_SUFFIX)

    @property
    def end_offset(self) -> int:
        """The offset after the last batch that is copied completely."""
        end = self.log.log_start_offset
        for segment in self.log.segments.ordered:
            copied = self._copied.get(segment.path.name, 0)
            if copied < segment.size:
                return segment.end_offset_at(copied) if copied else end
            end = segment.end_offset_at(copied) if copied else end
        return self.log.log_end_offset

    def prepare(self) -> None:
        """Create the directory of the copy. Raises MoveFailedError."""
        try:
            self.future.mkdir()
            write_topic_id(self.future, self._topic_id)
            sync_directory(self.target)
        except OSError as error:
            raise MoveFailedError(self.target, error) from error

    def plan(self) -> Plan:
        """List the data that is still to be copied. Raises OSError."""
        if self.log.state.truncations != self._truncations:
            # start over: the truncated bytes may have been copied before they were rewritten
            self._truncations = self.log.state.truncations
            stale, self._copied = list(self._copied), {}
        else:
            stale = []
        sizes: dict[str, int] = {}
        for segment in self.log.segments.ordered:
            for path in segment.files():
                size = segment.size if path == segment.path else _size_of(path)
                if size is not None:
                    sizes[path.name] = size
        for path in snapshots(self.log.directory).values():
            sizes[path.name] = _size_of(path) or 0
        gone = [name for name in self._copied if name not in sizes and name != LEADER_EPOCHS_FILE]
        for name in gone:
            del self._copied[name]
        files = [
            _File(self.log.directory / name, self._copied.get(name, 0), size)
            for name, size in sizes.items()
            if self._copied.get(name, -1) < size
        ]
        epochs = self.log.directory / LEADER_EPOCHS_FILE
        if epochs.exists():
            files.append(_File(epochs, 0, epochs.stat().st_size))
        return Plan(files, [*stale, *gone], self.log.log_end_offset)

    def copy(self, plan: Plan, bytes_per_second: Callable[[], float], *, sync: bool = True) -> None:
        """Carry out `plan`. Raises MoveAbortedError, MoveFailedError and OSError."""
        for name in plan.stale:
            (self.future / name).unlink(missing_ok=True)
        for file in plan.files:
            try:
                source = os.open(file.source, os.O_RDONLY)
            except FileNotFoundError:
                continue  # deleted by retention; the next plan omits it
            except OSError as error:
                raise MoveFailedError(self.log.directory.parent, error) from error
            try:
                self._copy_file(source, file, bytes_per_second, sync=sync)
            finally:
                os.close(source)
            self._copied[file.source.name] = file.end
        try:
            if sync:
                sync_directory(self.future)
                self.synced_offset = plan.end_offset
        except OSError as error:
            raise MoveFailedError(self.target, error) from error

    def _copy_file(self, source: int, file: _File, bytes_per_second: Callable[[], float], *, sync: bool) -> None:
        try:
            target = os.open(self.future / file.source.name, os.O_WRONLY | os.O_CREAT, 0o644)
        except OSError as error:
            raise MoveFailedError(self.target, error) from error
        try:
            position = file.start
            while position < file.end:
                if self.abort_reason:
                    raise MoveAbortedError(self.abort_reason)
                data = self._read(source, min(_CHUNK_BYTES, file.end - position), position)
                if not data:
                    break  # truncated; the next plan starts over
                self._write(target, data, position)
                position += len(data)
                self._pause(len(data) / max(1, bytes_per_second()))
            self._finish(target, position if file.start == 0 else None, sync=sync)
        finally:
            os.close(target)

    def _read(self, source: int, size: int, position: int) -> bytes:
        try:
            return os.pread(source, size, position)
        except OSError as error:
            raise MoveFailedError(self.log.directory.parent, error) from error

    def _write(self, target: int, data: bytes, position: int) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(target, view, position)
                view, position = view[written:], position + written
        except OSError as error:
            raise MoveFailedError(self.target, error) from error

    def _finish(self, target: int, size: int | None, *, sync: bool) -> None:
        try:
            if size is not None:
                os.ftruncate(target, size)  # an earlier copy may be longer: the leader epoch file can shrink
            if sync:
                os.fsync(target)
        except OSError as error:
            raise MoveFailedError(self.target, error) from error

    def _pause(self, seconds: float) -> None:
        due = time.monotonic() + seconds
        while (left := due - time.monotonic()) > 0:
            if self.abort_reason:
                raise MoveAbortedError(self.abort_reason)
            time.sleep(min(left, _LONGEST_PAUSE_S))

    def discard(self) -> None:
        """Remove the copy, ignoring errors; the next start removes the rest."""
        remove_tree(self.future)


def _size_of(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None
