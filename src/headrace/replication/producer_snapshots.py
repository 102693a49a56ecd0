"""Writes the state of producers down every few seconds, so that a start after a crash reads little to find it again.

Without this, it would be read from the headers of everything behind the beginning of the active segment.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from headrace.replication.partition import Partition
from headrace.storage.log.log import Log
from headrace.storage.log.producers.producer_snapshot import write_snapshot
from headrace.storage.log.segment_files import SNAPSHOT_SUFFIX, segment_file

INTERVAL_MS: Final = 3000
_WORTH_BYTES: Final = 1024 * 1024
"""What is read in a few milliseconds needs no snapshot."""

log = logging.getLogger(__name__)


class _Due(NamedTuple):
    """A snapshot to be written: the state before `offset`, and which one it replaces."""

    log: Log
    offset: int
    entries: list[bytes]
    truncations: int
    replaced: int | None


class _Written(NamedTuple):
    """The last snapshot of a log: at its end then, `size` bytes behind the beginning of its active segment."""

    offset: int | None
    active_base_offset: int
    size: int


class ProducerSnapshots:
    """Remembers what was written of each log."""

    def __init__(self, partitions: Callable[[], Iterable[Partition]]) -> None:
        self._partitions = partitions
        self._written: WeakKeyDictionary[Log, _Written] = WeakKeyDictionary()

    def take(self) -> Callable[[], None] | None:
        """Take the state of those that have grown, in the thread that appends; returns what writes it, in another."""
        due: list[_Due] = []
        for partition in self._partitions():
            log_of_it = partition.log
            active = log_of_it.segments.active
            last = self._written.get(log_of_it)
            if last is None or last.active_base_offset != active.base_offset:
                # what began the segment, or was there at the start, has its own snapshot
                last = _Written(None if last is None else last.offset, active.base_offset, 0)
            if active.size - last.size < _WORTH_BYTES:
                continue
            offset = log_of_it.log_end_offset
            due.append(_Due(log_of_it, offset, partition.packed_producers(), log_of_it.state.truncations, last.offset))
            self._written[log_of_it] = _Written(offset, active.base_offset, active.size)
        return (lambda: _write(due)) if due else None


def _write(due: Iterable[_Due]) -> None:
    """Raises OSError, after all have been tried."""
    failure = None
    for each in due:
        directory = each.log.directory
        try:
            path = write_snapshot(directory, each.offset, each.entries, sync=False)
            if each.truncations != each.log.state.truncations:
                path.unlink(missing_ok=True)
            elif each.replaced is not None and all(
                each.replaced != old.base_offset for old in each.log.segments.ordered
            ):
                segment_file(directory, each.replaced, SNAPSHOT_SUFFIX).unlink(missing_ok=True)
        except OSError as error:
            if directory == each.log.directory and each.log.segments.ordered:  # neither deleted nor closed meanwhile
                failure = error
    if failure is not None:
        raise failure
