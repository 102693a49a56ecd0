"""The open transactions of a log, which determine its last stable offset (KIP-98)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.producers.producer_snapshot import ENTRY, ProducerEntry
from headrace.wire.batch import BatchHeader
from headrace.wire.control import Marker, marker_of


class OpenTransaction(NamedTuple):
    """`last_timestamp` in ms."""

    epoch: int
    first_offset: int
    last_timestamp: int


class OpenTransactions:
    """Follows every transactional batch in offset order, starting with the producers of a snapshot."""

    __slots__ = ("_open", "first_offset")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._open = {
            entry.producer_id: OpenTransaction(entry.epoch, entry.current_txn_first_offset, entry.timestamp)
            for entry in entries
            if entry.current_txn_first_offset >= 0
        }
        self.first_offset: int | None = None
        """The first offset of the oldest open transaction; None if none is open."""
        self._note_first()

    def __len__(self) -> int:
        return len(self._open)

    def producer_ids(self) -> list[int]:
        return list(self._open)

    def add(self, header: BatchHeader) -> None:
        """Account for a data batch of a transaction."""
        begun = self._open.get(header.producer_id)
        first_offset = header.base_offset if begun is None else begun.first_offset
        self._open[header.producer_id] = OpenTransaction(header.producer_epoch, first_offset, header.max_timestamp)
        if self.first_offset is None:
            self.first_offset = first_offset

    def end(self, header: BatchHeader, key: bytes | None) -> AbortedTransaction | None:
        """Account for a control batch, `key` being that of its record, and return the transaction that it aborts."""
        marker = marker_of(key)
        if marker is None:
            return None
        ended = self._open.pop(header.producer_id, None)
        if ended is None:
            return None
        self._note_first()
        if marker is not Marker.ABORT:
            return None
        stable = header.next_offset if self.first_offset is None else self.first_offset
        return AbortedTransaction(header.producer_id, ended.first_offset, header.last_offset, stable)

    def snapshot_entries(self, entries: Mapping[int, bytes]) -> list[bytes]:
        """Add open transactions to packed entries by producer id, with new entries for expired producers."""
        if not self._open:
            return list(entries.values())
        found = dict(entries)
        for producer_id, transaction in self._open.items():
            known = found.get(producer_id)
            if known is None:
                entry = ProducerEntry(producer_id, transaction.epoch, -1, -1, 0, transaction.last_timestamp, -1, -1)
            else:
                entry = ProducerEntry(*ENTRY.unpack_from(known))
            found[producer_id] = replace(entry, current_txn_first_offset=transaction.first_offset).packed()
        return list(found.values())

    def _note_first(self) -> None:
        self.first_offset = min((transaction.first_offset for transaction in self._open.values()), default=None)
