"""Follows the transactions in a log during compaction, and decides which batches and markers to remove.

Records of aborted transactions are removed. A marker is removed after the delete horizon, once its transaction has no
batches left.
"""

from collections.abc import Iterable

from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.wire.batch import BatchHeader
from headrace.wire.control import Marker, marker_of


class CleanedTransactions:
    """Decides which transactional batches and markers to remove.

    Pass it every batch from `from_offset` on, in order. `aborted` comes from the log's transaction indexes.
    """

    __slots__ = ("_aborted", "_ongoing_aborted", "_ongoing_committed", "_seen")

    def __init__(self, aborted: Iterable[AbortedTransaction], from_offset: int) -> None:
        relevant = {transaction for transaction in aborted if transaction.last_offset >= from_offset}
        self._aborted = sorted(relevant, key=lambda transaction: transaction.first_offset, reverse=True)
        self._ongoing_aborted: dict[int, AbortedTransaction] = {}
        self._ongoing_committed: set[int] = set()
        self._seen: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        """Return True if the data batch belongs to an aborted transaction."""
        if not header.is_transactional:
            return False
        self._begin_up_to(header.last_offset)
        if header.producer_id in self._ongoing_aborted:
            self._seen.add(header.producer_id)
            return True
        self._ongoing_committed.add(header.producer_id)
        return False

    def marker(self, header: BatchHeader, key: bytes | None) -> tuple[bool, AbortedTransaction | None]:
        """Return True if the control batch may be removed; otherwise False, and the aborted transaction that it ends.

        `key` is the key of its record; None if the record was already removed.
        """
        self._begin_up_to(header.last_offset)
        if key is None:
            return True, None
        marker = marker_of(key)
        producer_id = header.producer_id
        if marker is Marker.ABORT:
            transaction = self._ongoing_aborted.pop(producer_id, None)
            if producer_id in self._seen:
                self._seen.discard(producer_id)
                return False, transaction
            return True, None
        if marker is Marker.COMMIT:
            if producer_id in self._ongoing_committed:
                self._ongoing_committed.discard(producer_id)
                return False, None
            return True, None
        return False, None

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            transaction = self._aborted.pop()
            self._ongoing_aborted.setdefault(transaction.producer_id, transaction)
