"""The requests of `headrace transactions`, which Apache Kafka supports too. Failures are CommandErrors."""

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from headrace.cli.cluster import Cluster
from headrace.cli.failures import CommandError
from headrace.cli.python_admin import python_admin, until_coordinated
from headrace.wording import in_one_line, listed

T = TypeVar("T")

Place = tuple[str, int]
"""Topic and partition."""

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "PrepareEpochFence",
    "Dead",
)
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_A_REQUEST = 500
"""Partitions or transactional ids in one request, as in Kafka's own tool."""
_PARTITION = re.compile(r"TopicPartition\(topic='(?P<topic>[^']+)', partition=(?P<partition>\d+)\)")


class TooOldError(CommandError):
    """The brokers do not support ListTransactions or DescribeProducers, which Apache Kafka has since version 3.0."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A transactional id as its coordinator lists it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transactional id with its latest transaction; times in ms."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    started_ms: int | None
    """Start of the latest transaction; None before the first."""
    places: tuple[Place, ...]
    """Partitions that have no marker yet."""

    @property
    def is_open(self) -> bool:
        """True if the transaction has begun and not all of its markers are written."""
        return self.state in _OPEN


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer that has written to a partition."""

    producer_id: int
    epoch: int
    coordinator_epoch: int | None
    """Epoch of the coordinator that wrote its last marker; None before the first."""
    last_sequence: int
    last_timestamp_ms: int
    start_offset: int | None
    """First offset of its open transaction; None if it has none."""


def list_transactions(
    cluster: Cluster,
    *,
    states: Collection[str] = (),
    producer_ids: Collection[int] = (),
    longer_than_ms: int | None = None,
    pattern: str | None = None,
) -> list[Listing]:
    """Return all transactions that pass every filter, sorted by transactional id."""
    from kafka.errors import UnknownError, UnsupportedVersionError

    with python_admin(cluster, "listing transactions") as admin:
        try:
            found = until_coordinated(
                lambda: admin.list_transactions(
                    state_filters=list(states),
                    producer_id_filters=list(producer_ids),
                    duration_filter_ms=longer_than_ms,
                    transactional_id_pattern=pattern,
                )
            )
        except UnsupportedVersionError:
            # The filters by state and producer id are as old as the request.
            if pattern is None and longer_than_ms is None:
                raise TooOldError(
                    f"the brokers at {cluster.bootstrap} cannot list transactions",
                    "This needs Apache Kafka 3.0 or later.",
                ) from None
            option, since = ("--pattern", "4.1") if pattern is not None else ("--longer-than", "3.8")
            raise CommandError(
                f"the brokers at {cluster.bootstrap} cannot filter transactions by {option}",
                f"This needs Apache Kafka {since} or later. List all transactions and filter the output.",
            ) from None
        except UnknownError:
            # kafka-python has no class for INVALID_REGULAR_EXPRESSION
            if pattern is None:
                raise
            raise CommandError(
                f"the brokers do not accept the pattern '{pattern}'", "Give a regular expression in RE2 syntax.", 2
            ) from None
    return sorted(
        (
            Listing(listing.transactional_id, coordinator, listing.producer_id, listing.state.value)
            for coordinator, listings in found.items()
            for listing in listings
        ),
        key=lambda each: each.transactional_id,
    )


def describe_transactions(cluster: Cluster, ids: Sequence[str]) -> dict[str, Transaction]:
    """Return the transactions of the `ids` that exist, by transactional id."""
    from kafka.errors import TransactionalIdNotFoundError

    found: dict[str, Transaction] = {}
    with python_admin(cluster, "describing transactions") as admin:
        for asked in _chunks(ids):
            try:
                answers = until_coordinated(partial(admin.describe_transactions, asked))
            except TransactionalIdNotFoundError:
                # If an id has expired, the whole request fails: describe the ids one by one.
                answers = {}
                for transactional_id in asked:
                    try:
                        answers |= admin.describe_transactions([transactional_id])
                    except TransactionalIdNotFoundError:
                        continue
            for transactional_id, each in answers.items():
                found[transactional_id] = Transaction(
                    transactional_id,
                    each.coordinator_id,
                    each.producer_id,
                    each.producer_epoch,
                    each.state.value,
                    each.transaction_timeout_ms,
                    each.transaction_start_time_ms if each.transaction_start_time_ms >= 0 else None,
                    tuple(sorted((place.topic, place.partition) for place in each.topic_partitions)),
                )
    return found


def describe_producers(
    cluster: Cluster, places: Collection[Place], broker: int | None = None
) -> dict[Place, list[Producer]]:
    """Return the producers of each partition, from its leader or from the replica on `broker`.

    Raises TooOldError.
    """
    from kafka import TopicPartition
    from kafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError, UnsupportedVersionError

    found: dict[Place, list[Producer]] = {}
    with python_admin(cluster, "describing producers") as admin:
        for asked in _chunks(sorted(places)):
            partitions = [TopicPartition(*place) for place in asked]
            try:
                answers = admin.describe_producers(partitions, broker_id=broker)
            except UnsupportedVersionError:
                raise TooOldError(
                    f"the brokers at {cluster.bootstrap} cannot describe producers",
                    "This needs Apache Kafka 3.0 or later.",
                ) from None
            except (NotLeaderForPartitionError, UnknownTopicOrPartitionError) as error:
                where = "the leader" if broker is None else f"broker {broker}"
                raise CommandError(
                    f"describing producers: {where} does not have {_refused_of(error, asked)} ({error.message})",
                    "`headrace topics describe TOPIC` shows leaders and replicas.",
                ) from None
            for place, answer in answers.items():
                found[place.topic, place.partition] = [
                    Producer(
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch if producer.coordinator_epoch >= 0 else None,
                        producer.last_sequence,
                        producer.last_timestamp,
                        producer.current_transaction_start_offset
                        if producer.current_transaction_start_offset >= 0
                        else None,
                    )
                    for producer in sorted(answer.active_producers)
                ]
    return found


def _refused_of(error: Exception, asked: Sequence[Place]) -> str:
    """Name the partition that kafka-python's `error` names, or else the first ones of the request."""
    match = _PARTITION.search(str(error))
    places = asked if match is None else [(match["topic"], int(match["partition"]))]
    named = listed((f"{topic}:{partition}" for topic, partition in places), len(places))
    return named if len(places) == 1 else f"all of {named}"


def start_offsets(cluster: Cluster, transactions: Collection[Transaction]) -> Mapping[tuple[int, Place], int]:
    """Return the first offset of each transaction in each partition, by (producer id, partition).

    Empty if the producers cannot be described.
    """
    places = {place for transaction in transactions for place in transaction.places}
    try:
        producers = describe_producers(cluster, places) if places else {}
    except CommandError:
        return {}
    return {
        (item.producer_id, place): item.start_offset
        for place, found in producers.items()
        for item in found
        if item.start_offset is not None
    }


def holder(cluster: Cluster, place: Place, producer_id: int) -> Transaction | None:
    """Return the producer's transaction whose coordinator will write a marker to the partition, or None.

    Raises TooOldError if the brokers are too old to tell.
    """
    listings = list_transactions(cluster, producer_ids=[producer_id])
    described = describe_transactions(cluster, [listing.transactional_id for listing in listings])
    return next((item for item in described.values() if place in item.places), None)


def abort(cluster: Cluster, place: Place, producer_id: int, epoch: int, coordinator_epoch: int) -> None:
    """Write an abort marker for the producer's transaction to the leader of the partition."""
    from kafka import TopicPartition
    from kafka.admin import AbortTransactionSpec
    from kafka.errors import InvalidProducerEpochError, TransactionCoordinatorFencedError

    topic, partition = place
    with python_admin(cluster, f"aborting in {topic}:{partition}") as admin:
        try:
            admin.abort_transaction(AbortTransactionSpec(TopicPartition(*place), producer_id, epoch, coordinator_epoch))
        except InvalidProducerEpochError:
            raise CommandError(
                f"producer {producer_id} no longer has epoch {epoch} in {topic}:{partition}",
                f"`headrace transactions describe-producers {topic}:{partition}` shows its current epoch.",
            ) from None
        except TransactionCoordinatorFencedError:
            raise CommandError(
                f"coordinator epoch {coordinator_epoch} is out of date for {topic}:{partition}",
                f"`headrace transactions describe-producers {topic}:{partition}` shows the latest one.",
            ) from None


def missing_id(cluster: Cluster, transactional_id: str) -> CommandError:
    """Return the error for a transactional id that does not exist, with a similar id as a suggestion."""
    known = [transaction.transactional_id for transaction in list_transactions(cluster)]
    near = difflib.get_close_matches(transactional_id, known, n=1, cutoff=0.6)
    what = f"transactional id '{transactional_id}' does not exist at {cluster.bootstrap}"
    if transactional_id in map(in_one_line, known):
        return CommandError(
            what, "A similar id has control characters: `headrace transactions list --json` shows it exactly."
        )
    hint = f"Did you mean '{near[0]}'? " if near else ""
    return CommandError(what, f"{hint}`headrace transactions list` shows all ids; unused ids expire.")


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), _A_REQUEST):
        yield items[start : start + _A_REQUEST]
