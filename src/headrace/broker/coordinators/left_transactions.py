"""Ends transactions that Kafka left open in an adopted directory. This broker has no transaction coordinator: it begins
none, and only completes what stands in `__transaction_state`, which it does not change.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from headrace.broker.coordinators import offsets_topic
from headrace.clock import now_ms
from headrace.coordinator.transactions.left import ending_of
from headrace.coordinator.transactions.records import TransactionMetadata, decode_transaction
from headrace.errors import KafkaError
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.wire.records import iter_records

_TOPIC: Final = "__transaction_state"
OnOffsets: TypeAlias = Callable[[int, int, bool], None]
"""Called with a partition of `__consumer_offsets`, a producer id, and whether its transaction is committed."""

log = logging.getLogger(__name__)


class LeftTransactions:
    """Reads `__transaction_state` when it is first needed."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._replicas = replicas
        self._known: dict[int, TransactionMetadata] | None = None

    def end_due(self, on_offsets: OnOffsets | None = None) -> None:
        """Write the markers whose time has come; `on_offsets` is told of those in `__consumer_offsets`.

        Raises KafkaError(kafka_storage_error); OSError.
        """
        for partition in self._replicas.partitions():
            if partition.transactions.first_offset is not None:
                self._end_in(partition, on_offsets)

    def _end_in(self, partition: Partition, on_offsets: OnOffsets | None) -> None:
        if self._known is None:
            self._known = self._read()
        for producer_id in partition.transactions.producer_ids():
            transaction = self._known.get(producer_id)
            ending = ending_of(transaction, now_ms())
            if ending is None or transaction is None:
                continue
            partition.end_transaction(producer_id, ending.producer_epoch, commit=ending.commit, now_ms=now_ms())
            log.warning(
                "%s: %s the transaction of transactional id %s (producer %d), which Kafka left open in state %s",
                partition.topic_partition,
                "committed" if ending.commit else "aborted",
                transaction.transactional_id,
                producer_id,
                transaction.state.name,
            )
            if on_offsets is not None and partition.topic_partition.topic == offsets_topic.NAME:
                on_offsets(partition.topic_partition.partition, producer_id, ending.commit)

    def _read(self) -> dict[int, TransactionMetadata]:
        """The last word on each producer id that has a transactional id."""
        known: dict[str, TransactionMetadata] = {}
        for key, value in self._records():
            try:
                decoded = decode_transaction(key, value)
            except KafkaError as error:
                log.error("A record of %s is passed over; its transaction stays open: %s", _TOPIC, error)
                continue
            if decoded is None:
                continue
            transactional_id, metadata = decoded
            if metadata is None:
                known.pop(transactional_id, None)
            else:
                known[transactional_id] = metadata
        return {each.producer_id: each for each in known.values()}

    def _records(self) -> Iterator[tuple[bytes, bytes | None]]:
        for partition in self._replicas.partitions():
            if partition.topic_partition.topic == _TOPIC:
                for segment, position, header in partition.log.segments.batches(partition.log_start_offset):
                    if not header.is_control:
                        for record in iter_records(segment.file.pread(header.size, position)):
                            if record.key is not None:
                                yield record.key, record.value
