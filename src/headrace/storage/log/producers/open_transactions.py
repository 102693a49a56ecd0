"""The open transactions of a log, which determine its last stable offset (KIP-98)."""

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
    """An ended transaction whose marker is not below the high watermark yet."""

    first_offset: int
    marker_offset: int


class OpenTransactions(Container[int]):
    """The open transactions, by producer id. Start with a snapshot, then pass every transactional batch in order."""

    __slots__ = ("_ended", "_open", "first_offset", "markers")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        begun = [entry for entry in entries if entry.current_txn_first_offset >= 0]
        begun.sort(key=lambda entry: entry.current_txn_first_offset)
        self._open = {
            entry.producer_id: OpenTransaction(entry.epoch, entry.current_txn_first_offset, entry.timestamp)
            for entry in begun
        }
        """In order of their first offsets."""
        self.markers = MarkerCounts()
        self._ended: deque[_Ended] = deque()
        self.first_offset: int | None = None
        """The first offset of the oldest transaction that is open or in `_ended`; None if there is none."""
        self._note_first()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, producer_id: object) -> bool:
        return producer_id in self._open

    def producer_ids(self) -> list[int]:
        return list(self._open)

    @property
    def oldest_timestamp(self) -> int | None:
        """Timestamp in ms of the last record of the oldest open transaction, or None."""
        oldest = next(iter(self._open.values()), None)
        return None if oldest is None else oldest.last_timestamp

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Return True if the producer has an open transaction with this epoch."""
        return self.begin_of(producer_id, epoch) is not None

    def begin_of(self, producer_id: int, epoch: int) -> int | None:
        """Return the first offset of the producer's open transaction with this epoch; None if there is none."""
        begun = self._open.get(producer_id)
        return begun.first_offset if begun is not None and begun.epoch == epoch else None

    def add(self, header: BatchHeader) -> None:
        """Account for a transactional data batch."""
        self.add_at(header, header.base_offset)

    def add_at(self, header: BatchHeader, base_offset: int) -> None:
        """Account for a transactional data batch at `base_offset`, which replaces the header's base offset."""
        begun = self._open.get(header.producer_id)
        first_offset = base_offset if begun is None else begun.first_offset
        self._open[header.producer_id] = OpenTransaction(header.producer_epoch, first_offset, header.max_timestamp)
        if self.first_offset is None:
            self.first_offset = first_offset

    def copy_of(self, producer_id: int) -> OpenTransaction | None:
        """Return the producer's open transaction, for `put_back`."""
        return self._open.get(producer_id)

    def put_back(self, before: Mapping[int, OpenTransaction | None]) -> None:
        """Restore the transactions of these producers from `copy_of`."""
        for producer_id, begun in before.items():
            if begun is not None:
                self._open[producer_id] = begun
            elif self._open.pop(producer_id, None) is not None:
                self._note_first()

    def end(self, header: BatchHeader, key: bytes | None) -> AbortedTransaction | None:
        """Account for a committed control batch, whose record has `key`; return the transaction that it aborts."""
        marker = marker_of(key)
        if marker is None:
            return None
        aborted = self.end_at(header.producer_id, header.last_offset, marker)
        self.committed_to(header.next_offset)
        return aborted

    def end_at(self, producer_id: int, offset: int, marker: Marker) -> AbortedTransaction | None:
        """Like `end`, for an uncommitted marker at `offset`: consumers stop before it until `committed_to`."""
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
        """Record that everything before `offset`, including markers, is committed."""
        if self._ended and self._ended[0].marker_offset < offset:
            while self._ended and self._ended[0].marker_offset < offset:
                self._ended.popleft()
            self._note_first()

    def snapshot_entries(self, entries: Mapping[int, bytes]) -> list[bytes]:
        """Return the packed `entries` with their open transactions, and entries for expired producers that have any."""
        if not self._open:
            return list(entries.values())
        found = dict(entries)
        for producer_id, transaction in self._open.items():
            known = found.get(producer_id)
            if known is None:
                entry = ProducerEntry(producer_id, transaction.epoch, -1, -1, 0, transaction.last_timestamp, -1, -1)
            else:
                entry = ProducerEntry.unpacked(known)
            found[producer_id] = replace(entry, current_txn_first_offset=transaction.first_offset).packed()
        return list(found.values())

    def _note_first(self) -> None:
        oldest = next(iter(self._open.values()), None)
        self.first_offset = None if oldest is None else oldest.first_offset
        for ended in self._ended:
            if self.first_offset is None or ended.first_offset < self.first_offset:
                self.first_offset = ended.first_offset
