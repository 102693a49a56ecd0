"""Which transactions of a log are open: where consumers of committed records stop, and what a marker ends (KIP-98)."""

from collections import deque
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.producers.marker_counts import MarkerCounts
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.wire.batch import BatchHeader
from headrace.wire.control import Marker, marker_of


class OpenTransaction(NamedTuple):
    """`last_timestamp` in ms."""

    epoch: int
    first_offset: int
    last_timestamp: int


class _Ended(NamedTuple):
    """A transaction whose marker is not committed yet."""

    first_offset: int
    marker_offset: int


class OpenTransactions(Container[int]):
    """Told of every transactional batch in order, from a snapshot on. Contains producer ids."""

    __slots__ = ("_ended", "_open", "first_offset", "markers")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        begun = [each for each in entries if each.current_txn_first_offset >= 0]
        begun.sort(key=lambda each: each.current_txn_first_offset)
        self._open = {
            each.producer_id: OpenTransaction(each.epoch, each.current_txn_first_offset, each.timestamp)
            for each in begun
        }
        """In order of their first offsets."""
        self.markers = MarkerCounts()
        self._ended: deque[_Ended] = deque()
        self.first_offset: int | None = None
        """Where the oldest begins whose end is not committed; None where there is none."""
        self._note_first()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._open

    def producer_ids(self) -> list[int]:
        """Whose they are."""
        return list(self._open)

    @property
    def oldest_timestamp(self) -> int | None:
        """Time in ms of the last record of the oldest one; None without any."""
        oldest = next(iter(self._open.values()), None)
        return None if oldest is None else oldest.last_timestamp

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has one open under that epoch: under a later one, its marker is still to come."""
        begun = self._open.get(producer_id)
        return begun is not None and begun.epoch == epoch

    def add(self, header: BatchHeader) -> None:
        """A batch of data of a transaction."""
        self.add_at(header, header.base_offset)

    def add_at(self, header: BatchHeader, base_offset: int) -> None:
        """A batch of data of a transaction, now at `base_offset`."""
        begun = self._open.get(header.producer_id)
        first_offset = base_offset if begun is None else begun.first_offset
        self._open[header.producer_id] = OpenTransaction(header.producer_epoch, first_offset, header.max_timestamp)
        if self.first_offset is None:
            self.first_offset = first_offset

    def copy_of(self, producer_id: int) -> OpenTransaction | None:
        """The producer's open transaction, for `put_back`."""
        return self._open.get(producer_id)

    def put_back(self, before: Mapping[int, OpenTransaction | None]) -> None:
        """Return these producers to what `copy_of` gave."""
        for producer_id, begun in before.items():
            if begun is not None:
                self._open[producer_id] = begun
            elif self._open.pop(producer_id, None) is not None:
                self._note_first()

    def end(self, header: BatchHeader, key: bytes | None) -> AbortedTransaction | None:
        """A control batch that is committed, with the key of its record; the transaction that it aborts, if any."""
        marker = marker_of(key)
        if marker is None:
            return None
        aborted = self.end_at(header.producer_id, header.last_offset, marker)
        self.committed_to(header.next_offset)
        return aborted

    def end_at(self, producer_id: int, offset: int, marker: Marker) -> AbortedTransaction | None:
        """As `end`, of one at `offset` that may not be committed: consumers stop before it until `committed_to`."""
        self.markers.note(offset)
        ended = self._open.pop(producer_id, None)
        if ended is None:
            return None
        self._ended.append(_Ended(ended.first_offset, offset))
        self._note_first()
        if marker is not Marker.ABORT:
            return None
        oldest = next(iter(self._open.values()), None)
        stable = offset + 1 if oldest is None else oldest.first_offset
        return AbortedTransaction(producer_id, ended.first_offset, offset, stable)

    def committed_to(self, offset: int) -> None:
        """What is before `offset` is committed, markers too."""
        if self._ended and self._ended[0].marker_offset < offset:
            while self._ended and self._ended[0].marker_offset < offset:
                self._ended.popleft()
            self._note_first()

    def marked(self, entries: Mapping[int, bytes]) -> list[bytes]:
        """The packed snapshot entries of producers by id, and of expired ones, with their open transactions."""
        if not self._open:
            return list(entries.values())
        found = dict(entries)
        for producer_id, each in self._open.items():
            known = found.get(producer_id)
            if known is None:
                entry = ProducerEntry(producer_id, each.epoch, -1, -1, 0, each.last_timestamp, -1, -1)
            else:
                entry = ProducerEntry.unpacked(known)
            found[producer_id] = replace(entry, current_txn_first_offset=each.first_offset).packed()
        return list(found.values())

    def _note_first(self) -> None:
        oldest = next(iter(self._open.values()), None)
        self.first_offset = None if oldest is None else oldest.first_offset
        for each in self._ended:
            if self.first_offset is None or each.first_offset < self.first_offset:
                self.first_offset = each.first_offset
