"""Metrics of replication: led and followed partitions, fetchers, and the cluster as this broker sees it."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from headrace.cluster.image import MetadataImage
from headrace.metrics import Family, gauge
from headrace.replication.following.fetch_figures import FetcherFigures
from headrace.replication.replica_manager import ReplicaManager
from headrace.types import TopicPartition


class Elections(Protocol):
    """Number of times that this broker became leader or follower, since its start."""

    elected: int
    followed: int


class IsrFigures(Protocol):
    """Number of ISR changes since this broker's start.

    `failures` were rejected by the controller, or submitted while another change was pending.
    """

    shrinks: int
    expands: int
    failures: int


class Fetchers(Protocol):
    """The fetchers of this broker."""

    @property
    def failures(self) -> Collection[TopicPartition]:
        """Partitions that are no longer fetched because of an error."""

    def figures(self) -> Iterable[FetcherFigures]:
        """Return the figures of every fetcher."""


class _Led(NamedTuple):
    """The replicas of a partition that this broker leads."""

    topic_partition: TopicPartition
    missing: int
    """Replicas that are not in sync. As in Kafka, the replicas that a reassignment is adding do not count."""
    spare: int
    """Number of in-sync replicas above min.insync.replicas; negative if there are too few."""


def replica_manager(replicas: ReplicaManager) -> Iterable[Family]:
    """Yield the number of partitions on this broker, and of those that lack in-sync replicas."""
    led = [
        _Led(
            partition.topic_partition,
            partition.replica_count - partition.adding_count - partition.isr_size,
            partition.isr_size - min(partition.log.config.min_insync_replicas, partition.replica_count),
        )
        for partition in replicas.partitions()
    ]
    offline = replicas.offline_count
    counts = (
        ("partitioncount", "Partitions on this broker.", len(replicas.hosted()) + offline),
        ("leadercount", "Partitions that this broker leads.", len(led)),
        (
            "underreplicatedpartitions",
            "Led partitions with replicas that are not in sync, except those that a reassignment is adding.",
            sum(item.missing > 0 for item in led),
        ),
        (
            "underminisrpartitioncount",
            "Led partitions with fewer in-sync replicas than min.insync.replicas.",
            sum(item.spare < 0 for item in led),
        ),
        (
            "atminisrpartitioncount",
            "Led partitions with exactly as many in-sync replicas as min.insync.replicas requires.",
            sum(item.spare == 0 for item in led),
        ),
        ("offlinereplicacount", "Partitions that are offline because their log directory has failed.", offline),
    )
    for name, explanation, value in counts:
        yield gauge(f"kafka_server_replicamanager_{name}", explanation, value)
    yield Family(
        "kafka_cluster_partition_underreplicated",
        "1 for a led partition with replicas that are not in sync, except those that a reassignment is adding.",
        partial(_ones, [item.topic_partition for item in led if item.missing > 0]),
    )
    yield Family(
        "kafka_cluster_partition_underminisr",
        "1 for a led partition with fewer in-sync replicas than min.insync.replicas.",
        partial(_ones, [item.topic_partition for item in led if item.spare < 0]),
    )


def cluster(image: MetadataImage, broker_id: int, elections: Elections) -> Iterable[Family]:
    """Yield the controller's metrics (0 on other brokers, as in Kafka) and this broker's elections."""
    is_controller = image.controller_id == broker_id
    yield gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "1 if this broker is the controller; the sum over the cluster must be 1.",
        int(is_controller),
    )
    yield gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions of the cluster without a leader; 0 unless this broker is the controller.",
        _leaderless(image) if is_controller else 0,
    )
    yield Family(
        "headrace_replica_elections",
        "Times that this broker became leader or follower of a partition, or remained so in a new leader epoch.",
        [({"role": "leader"}, elections.elected), ({"role": "follower"}, elections.followed)],
        "counter",
    )


def followers(isr: IsrFigures, fetchers: Fetchers) -> Iterable[Family]:
    """Yield the numbers of ISR changes, and the lag and the traffic of this broker's fetchers."""
    for name, explanation, value in (
        ("isrshrinks", "Changes that removed followers from the in-sync replicas.", isr.shrinks),
        ("isrexpands", "Changes that added followers to the in-sync replicas.", isr.expands),
        ("failedisrupdates", "Changes to the in-sync replicas that were not applied.", isr.failures),
    ):
        yield Family(f"kafka_server_replicamanager_{name}", explanation, [({}, value)], "counter")
    known = tuple(fetchers.figures())
    manager = {"clientId": "Replica"}
    yield Family(
        "kafka_server_replicafetchermanager_maxlag",
        "Largest lag of the partitions that this broker follows, in records.",
        [(manager, max((lag for item in known for _, lag in item.lags), default=0))],
    )
    yield Family(
        "kafka_server_replicafetchermanager_failedpartitionscount",
        "Followed partitions that are no longer fetched because of an error.",
        [(manager, len(fetchers.failures))],
    )
    yield Family(
        "kafka_server_fetcherlagmetrics_consumerlag",
        "Lag of a partition that this broker follows, in records.",
        partial(_lags, known),
    )
    for name, explanation in (("requests", "Fetch requests to a leader."), ("bytes", "Bytes fetched from a leader.")):
        yield Family(
            f"kafka_server_fetcherstats_{name}",
            explanation,
            [(_labels(item), getattr(item, name)) for item in known],
            "counter",
        )


def _leaderless(image: MetadataImage) -> int:
    return sum(partition.leader < 0 for topic in image.topics.values() for partition in topic.partitions)


def _ones(partitions: Iterable[TopicPartition]) -> Iterator[tuple[Mapping[str, str], float]]:
    for topic, partition in partitions:
        yield {"topic": topic, "partition": str(partition)}, 1


def _lags(figures: Iterable[FetcherFigures]) -> Iterator[tuple[Mapping[str, str], float]]:
    for item in figures:
        for (topic, partition), lag in item.lags:
            yield {"clientId": item.name, "topic": topic, "partition": str(partition)}, lag


def _labels(figures: FetcherFigures) -> Mapping[str, str]:
    host, port = figures.address or ("", 0)
    return {"clientId": figures.name, "brokerHost": host, "brokerPort": str(port)}
