"""Which transactions of a log are open: where consumers of committed records stop, and what a marker ends (KIP-98)."""

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
    """Told of every transactional batch in order, from a snapshot on."""

    __slots__ = ("_open", "first_offset")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._open = {
            each.producer_id: OpenTransaction(each.epoch, each.current_txn_first_offset, each.timestamp)
            for each in entries
            if each.current_txn_first_offset >= 0
        }
        self.first_offset: int | None = None
        """Where the oldest of them begins; None where there is none."""
        self._note_first()

    def __len__(self) -> int:
        return len(self._open)

    def producer_ids(self) -> list[int]:
        """Whose they are."""
        return list(self._open)

    def add(self, header: BatchHeader) -> None:
        """A batch of data of a transaction."""
        begun = self._open.get(header.producer_id)
        first_offset = header.base_offset if begun is None else begun.first_offset
        self._open[header.producer_id] = OpenTransaction(header.producer_epoch, first_offset, header.max_timestamp)
        if self.first_offset is None:
            self.first_offset = first_offset

    def end(self, header: BatchHeader, key: bytes | None) -> AbortedTransaction | None:
        """A control batch, with the key of its record; the transaction that it aborts, if it does and there is one."""
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
                entry = ProducerEntry(*ENTRY.unpack_from(known))
            found[producer_id] = replace(entry, current_txn_first_offset=each.first_offset).packed()
        return list(found.values())

    def _note_first(self) -> None:
        self.first_offset = min((each.first_offset for each in self._open.values()), default=None)
