"""Find hanging transactions: they are open in a partition, but no coordinator will ever write a marker there.

The criteria are those of Kafka's TransactionsCommand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace import clock
from headrace.cli import transaction_calls
from headrace.cli.cluster import Cluster, leader_of
from headrace.cli.failures import CommandError, missing_partition
from headrace.cli.offset_plan import Selection
from headrace.cli.transaction_calls import Listing, Place, Producer, Transaction


@dataclass(frozen=True, slots=True)
class Hanging:
    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int | None
    last_timestamp_ms: int
    idle_seconds: float
    """Time since the last record, by its timestamp."""


@dataclass(frozen=True, slots=True)
class Search:
    """The hanging transactions, the number of partitions searched, and the partitions without a leader."""

    hanging: list[Hanging]
    searched: int
    leaderless: list[Place]


def search(cluster: Cluster, selection: Selection, broker: int | None, older_than_ms: int) -> Search:
    """Search the selected partitions (all if none are selected), on their leaders or on one broker."""
    places, leaderless = partitions(cluster, selection, broker)
    now_ms = clock.now_ms()
    candidates = {
        place: old
        for place, producers in transaction_calls.describe_producers(cluster, places, broker).items()
        if (old := [item for item in producers if _is_old(item, now_ms - older_than_ms)])
    }
    if not candidates:
        return Search([], len(places), leaderless)
    producer_ids = {item.producer_id for producers in candidates.values() for item in producers}
    listings = transaction_calls.list_transactions(cluster, producer_ids=producer_ids)
    transactions = transaction_calls.describe_transactions(cluster, [listing.transactional_id for listing in listings])
    left = unknown_to_coordinators(candidates, listings, transactions)
    return Search([_hanging(place, producer, now_ms) for place, producer in left], len(places), leaderless)


def unknown_to_coordinators(
    candidates: Mapping[Place, Sequence[Producer]],
    listings: Iterable[Listing],
    transactions: Mapping[str, Transaction],
) -> list[tuple[Place, Producer]]:
    """Return the open transactions among `candidates` to which no coordinator will write a marker."""
    ids = {listing.producer_id: listing.transactional_id for listing in listings}
    left = []
    for place, producers in sorted(candidates.items()):
        for producer in producers:
            transaction = transactions.get(ids.get(producer.producer_id, ""))
            if transaction is None or place not in transaction.places:
                left.append((place, producer))
    return left


def _is_old(producer: Producer, before_ms: int) -> bool:
    return producer.start_offset is not None and producer.last_timestamp_ms < before_ms


def _hanging(place: Place, producer: Producer, now_ms: int) -> Hanging:
    assert producer.start_offset is not None
    return Hanging(
        *place,
        producer.start_offset,
        producer.producer_id,
        producer.epoch,
        producer.coordinator_epoch,
        producer.last_timestamp_ms,
        (now_ms - producer.last_timestamp_ms) / 1000,
    )


def partitions(cluster: Cluster, selection: Selection, broker: int | None) -> tuple[list[Place], list[Place]]:
    """Return the selected partitions (all if none are selected) that have a leader, and those that have none.

    With `broker`, return the partitions with a replica on it, and no others. Raises CommandError for a missing topic
    or partition, and if `broker` has no replica of these partitions.
    """
    places, leaderless = [], []
    for topic in cluster.describe(list(selection.topics) or cluster.topic_names()):
        numbers = {partition.id for partition in topic.partitions}
        selected = selection.topics.get(topic.name)
        missing = None if selected is None else selected.first_missing(numbers)
        if missing is not None:
            raise missing_partition(topic.name, missing, len(numbers) - 1)
        for partition in topic.partitions:
            place = topic.name, partition.id
            if not selection.takes(place):
                continue
            if broker is not None:
                if any(replica.id == broker for replica in partition.replicas):
                    places.append(place)
            elif leader_of(partition) is None:
                leaderless.append(place)
            else:
                places.append(place)
    if broker is not None and not places:
        raise CommandError(
            f"broker {broker} has no replica of any of these partitions",
            "`headrace topics describe TOPIC` shows the brokers with replicas.",
        )
    return places, leaderless
