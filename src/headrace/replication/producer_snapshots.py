"""Write producer snapshots every few seconds, so that a start after a crash has little to read.

Otherwise it would read the headers of all batches in the active segment.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from headrace.replication.replica import Replica
from headrace.storage.log.log import Log
from headrace.storage.log.producers.producer_snapshot import write_snapshot
from headrace.storage.log.segment_files import SNAPSHOT_SUFFIX, segment_file

INTERVAL_MS: Final = 3000
_WORTH_BYTES: Final = 1024 * 1024
"""A start reads less than this from a log in a few milliseconds, so no snapshot is needed."""
_TEMPORARY_SUFFIX: Final = ".periodic.tmp"
"""Not the usual one: a roll may write a snapshot at the same offset at the same time."""

log = logging.getLogger(__name__)


class _Due(NamedTuple):
    """A snapshot to write: the state before `offset`, and the snapshot that it replaces."""

    log: Log
    offset: int
    entries: list[bytes]
    truncations: int
    replaced: int | None


class _Written(NamedTuple):
    """The last snapshot of a log, and the size of its active segment at that time."""

    offset: int | None
    active_base_offset: int
    size: int


class ProducerSnapshots:
    """Remembers the last snapshot of every log."""

    def __init__(self, partitions: Callable[[], Iterable[Replica]]) -> None:
        self._partitions = partitions
        self._written: WeakKeyDictionary[Log, _Written] = WeakKeyDictionary()

    def take(self) -> Callable[[], None] | None:
        """Copy the state of logs that have grown, on the event loop. Return a function that writes it, for a thread."""
        due: list[_Due] = []
        for partition in self._partitions():
            partition_log = partition.log
            active = partition_log.segments.active
            last = self._written.get(partition_log)
            if last is None or last.active_base_offset != active.base_offset:
                # Count from the beginning of the active segment, where rolling has written a snapshot.
                last = _Written(None if last is None else last.offset, active.base_offset, 0)
            if active.size - last.size < _WORTH_BYTES:
                continue
            offset, truncations = partition_log.log_end_offset, partition_log.state.truncations
            due.append(_Due(partition_log, offset, partition.packed_producers(), truncations, last.offset))
            self._written[partition_log] = _Written(offset, active.base_offset, active.size)
        return (lambda: _write(due)) if due else None


def _write(due: Iterable[_Due]) -> None:
    """Write all due snapshots. Raises OSError, after trying all."""
    failure = None
    for item in due:
        directory = item.log.directory
        try:
            path = write_snapshot(directory, item.offset, item.entries, sync=False, temporary_suffix=_TEMPORARY_SUFFIX)
            if item.truncations != item.log.state.truncations:
                path.unlink(missing_ok=True)
            elif item.replaced is not None and all(
                item.replaced != old.base_offset for old in item.log.segments.ordered
            ):
                segment_file(directory, item.replaced, SNAPSHOT_SUFFIX).unlink(missing_ok=True)
        except OSError as error:
            if directory == item.log.directory and item.log.segments.ordered:  # neither deleted nor closed meanwhile
                failure = error
    if failure is not None:
        raise failure
