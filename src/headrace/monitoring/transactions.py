"""Metrics of transactions that this broker coordinates, and of partitions with open transactions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from headrace.clock import now_ms
from headrace.coordinator.transactions.states import TransactionMetadata, TransactionState
from headrace.metrics import Family, gauge
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager

_LATE_MS: Final = 5 * 60 * 1000
"""A transaction is late if it stays open for longer than transaction.max.timeout.ms plus this, as in Kafka."""


def coordinator(ids: Sequence[TransactionMetadata]) -> Iterable[Family]:
    """Yield the number of transactional ids by state, and the age of the oldest open transaction."""
    yield Family("headrace_transactions", "Transactional ids of this coordinator, by state.", partial(_by_state, ids))
    yield Family(
        "headrace_transactions_oldest_open_seconds",
        "Age of the oldest transaction whose markers are not all written; 0 if none is open.",
        partial(_oldest, ids, now_ms()),
    )


def partitions(replicas: ReplicaManager, max_timeout_ms: int) -> Iterable[Family]:
    """Yield the lag of the last stable offset, and the number of partitions with late transactions."""
    waiting = [partition for partition in replicas.partitions() if partition.transactions.first_offset is not None]
    yield Family(
        "kafka_cluster_partition_laststableoffsetlag",
        "Distance in offsets from the last stable offset to the high watermark, in partitions with open transactions.",
        partial(_distances, waiting),
    )
    late_before = now_ms() - max_timeout_ms - _LATE_MS
    late = sum((item.transactions.oldest_timestamp or late_before) < late_before for item in waiting)
    yield gauge(
        "kafka_server_replicamanager_partitionswithlatetransactionscount",
        "Partitions with a transaction that has been open for 5 minutes longer than transaction.max.timeout.ms.",
        late,
    )


def _by_state(ids: Iterable[TransactionMetadata]) -> Iterator[tuple[Mapping[str, str], float]]:
    found = Counter(item.state for item in ids)
    for state in TransactionState:
        if state is not TransactionState.DEAD:
            yield {"state": state.kafka_name}, found[state]


def _oldest(ids: Iterable[TransactionMetadata], now: int) -> Iterator[tuple[Mapping[str, str], float]]:
    started = (
        item.start_ms
        for item in ids
        if (item.state is TransactionState.ONGOING or item.state.is_prepared) and item.start_ms >= 0
    )
    yield {}, max(now - min(started, default=now), 0) / 1000


def _distances(waiting: Iterable[Partition]) -> Iterator[tuple[Mapping[str, str], float]]:
    for item in waiting:
        topic, number = item.topic_partition
        last_stable_offset = item.last_stable_offset  # read first: both may grow meanwhile
        distance = item.high_watermark - last_stable_offset
        yield {"topic": topic, "partition": str(number)}, distance
