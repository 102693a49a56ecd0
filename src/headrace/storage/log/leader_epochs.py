"""The start offset of every leader epoch, stored in the file `leader-epoch-checkpoint` (KIP-101, KIP-279)."""

import logging
from bisect import bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from headrace.storage.files.atomic_file import sync_directory, sync_file
from headrace.storage.files.checkpoint import CorruptCheckpointError, read_lines, write_lines
from headrace.wire.batch import BatchHeader

FILE_NAME: Final = "leader-epoch-checkpoint"
UNDEFINED: Final = -1
"""An unknown epoch or offset."""

log = logging.getLogger(__name__)


class EpochEntry(NamedTuple):
    """The first offset written under an epoch."""

    epoch: int
    start_offset: int


class HasLogEnd(Protocol):
    @property
    def log_end_offset(self) -> int: ...


class LeaderEpochs:
    """The epochs of one log, ascending in epoch and in start offset. `latest` is -1 for a log without epochs.

    A new epoch is written without an fsync, so the first append under a new leader does not wait for the disk. The log
    calls `sync` before it moves its recovery point past the epoch's first record; until then, recovery can read the
    epoch from the batches.
    """

    __slots__ = ("_dirty", "_entries", "_log", "latest", "path")

    def __init__(self, path: Path, entries: list[EpochEntry], log_end: HasLogEnd) -> None:
        self.path = path
        self._entries = entries
        self.latest = entries[-1].epoch if entries else UNDEFINED
        self._log = log_end
        self._dirty = False

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    def epoch_for(self, offset: int) -> int:
        """Return the epoch in which `offset` was written; -1 if unknown."""
        place = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset) - 1
        return self._entries[place].epoch if place >= 0 else UNDEFINED

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch` and its end offset, as OffsetForLeaderEpoch does.

        Return `(-1, -1)` if `epoch` is newer than all known epochs, and `epoch` with the first known start offset if it
        is older than all of them.
        """
        if epoch == UNDEFINED:
            return UNDEFINED, UNDEFINED
        if epoch == self.latest:
            return epoch, self._log.log_end_offset
        place = bisect_right(self._entries, epoch, key=lambda entry: entry.epoch)
        if place == len(self._entries):
            return UNDEFINED, UNDEFINED
        end = self._entries[place].start_offset
        return (self._entries[place - 1].epoch if place else epoch), end

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` begins at `start_offset`, and drop entries that contradict it. Raises OSError."""
        kept = [entry for entry in self._entries if entry.epoch < epoch and entry.start_offset < start_offset]
        if any(entry.epoch == epoch and entry.start_offset <= start_offset for entry in self._entries[-1:]):
            return
        if len(kept) < len(self._entries) - 1:
            log.warning(
                "%s: leader epoch %d begins at offset %d. Dropping the entries that contradict it: %s",
                self.path,
                epoch,
                start_offset,
                ", ".join(
                    f"epoch {entry.epoch} at offset {entry.start_offset}" for entry in self._entries[len(kept) :]
                ),
            )
        self._replace([*kept, EpochEntry(epoch, start_offset)])

    def recover(self, header: BatchHeader) -> None:
        """Correct the entries to match a batch of the log; call this for its batches in order. Raises OSError.

        After a power failure the file may be older than a truncation, and contain epochs whose batches are gone.
        """
        epoch, last = header.partition_leader_epoch, self._entries[-1] if self._entries else None
        if epoch < 0 or (last is not None and last.epoch == epoch and last.start_offset <= header.base_offset):
            return
        if self.epoch_for(header.base_offset) == epoch == self.epoch_for(header.last_offset):
            return
        kept = [entry for entry in self._entries if entry.epoch <= epoch and entry.start_offset <= header.base_offset]
        if kept and kept[-1].epoch == epoch:
            self._replace(kept)
        else:
            before = [entry for entry in kept if entry.start_offset < header.base_offset]
            self._replace([*before, EpochEntry(epoch, header.base_offset)])

    def complete(self, headers: Iterable[BatchHeader], log_start_offset: int) -> None:
        """Restore the epochs before the first one in the file. `headers` are those of all batches in the log.

        The file may be missing or damaged, or begin at a log start offset that a crash then reverted. Raises OSError.
        """
        first = self._entries[0].start_offset if self._entries else self._log.log_end_offset
        if first <= log_start_offset:
            return
        found: list[EpochEntry] = []
        for header in headers:
            if header.base_offset >= first:
                break
            if header.partition_leader_epoch > (found[-1].epoch if found else UNDEFINED):
                found.append(EpochEntry(header.partition_leader_epoch, header.base_offset))
        if found:
            self._replace([*found, *(entry for entry in self._entries if entry.epoch > found[-1].epoch)])

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop epochs that begin at or after `end_offset`."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) < len(self._entries):
            self._replace(kept)

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop epochs that end at or before `start_offset`; the epoch that contains it then begins there."""
        place = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if place and self._entries[place - 1].start_offset < start_offset:
            self._replace([EpochEntry(self._entries[place - 1].epoch, start_offset), *self._entries[place:]])

    def clear(self) -> None:
        if self._entries:
            self._replace([])

    def sync(self) -> None:
        """Make assigned epochs survive a power failure. Raises OSError."""
        if self._dirty:
            self._dirty = False
            sync_file(self.path)
            sync_directory(self.path.parent)

    def _replace(self, entries: list[EpochEntry]) -> None:
        write_lines(self.path, (f"{entry.epoch} {entry.start_offset}" for entry in entries), sync=False)
        self._entries = entries
        self.latest = entries[-1].epoch if entries else UNDEFINED
        self._dirty = True


def read_entries(path: Path) -> list[EpochEntry]:
    """Read the entries of a checkpoint file. Raises CorruptCheckpointError and OSError."""
    entries: list[EpochEntry] = []
    for line in read_lines(path):
        try:
            epoch, start_offset = map(int, line.split(" "))
        except ValueError:
            raise CorruptCheckpointError(f"{path} has a malformed line: {line!r}") from None
        entry = EpochEntry(epoch, start_offset)
        if entries and (entry.epoch <= entries[-1].epoch or entry.start_offset < entries[-1].start_offset):
            raise CorruptCheckpointError(f"{path} is not ascending at the line {line!r}")
        entries.append(entry)
    return entries
