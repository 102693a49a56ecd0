"""Gather and print the data of `headrace topics describe`."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from confluent_kafka.admin import ConfigResource, ConfigSource, ResourceType

from headrace.cli import output
from headrace.cli.cluster import REQUEST_TIMEOUT_S, Cluster, leader_of
from headrace.cli.output import Column


@dataclass(frozen=True, slots=True)
class PartitionReport:
    partition: int
    leader: int | None
    replicas: list[int]
    isr: list[int]
    earliest: int | None
    latest: int | None
    size: int | None
    """Bytes on disk of the leader's copy; None if unknown."""

    @property
    def records(self) -> int | None:
        return None if self.latest is None or self.earliest is None else self.latest - self.earliest


@dataclass(frozen=True, slots=True)
class ConfigReport:
    name: str
    value: str | None
    source: str
    """Level at which the value is set: 'topic', 'broker' or 'cluster'."""


@dataclass(frozen=True, slots=True)
class TopicReport:
    name: str
    id: str
    internal: bool
    partitions: list[PartitionReport]
    configs: list[ConfigReport]

    @property
    def records(self) -> int:
        return sum(partition.records or 0 for partition in self.partitions)

    @property
    def size(self) -> int | None:
        """Bytes on disk of one copy; None if unknown."""
        sizes = [partition.size for partition in self.partitions if partition.size is not None]
        return sum(sizes) if sizes else None

    @property
    def replication_factor(self) -> int:
        return max((len(partition.replicas) for partition in self.partitions), default=0)

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "id": self.id,
            "internal": self.internal,
            "replication_factor": self.replication_factor,
            "records": self.records,
            "size": self.size,
            "configs": [asdict(config) for config in self.configs],
            "partitions": [{**asdict(partition), "records": partition.records} for partition in self.partitions],
        }


_SOURCES = {
    ConfigSource.DYNAMIC_TOPIC_CONFIG: "topic",
    ConfigSource.DYNAMIC_BROKER_CONFIG: "broker",
    ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG: "cluster",
    ConfigSource.STATIC_BROKER_CONFIG: "broker",
}


def report(cluster: Cluster, names: Sequence[str]) -> list[TopicReport]:
    """Report on topics. Raises CommandError if one does not exist."""
    topics = cluster.describe(names)
    configs = _configs(cluster, names)
    leaders = {
        topic.name: {p.id: leader for p in topic.partitions if (leader := leader_of(p)) is not None} for topic in topics
    }
    sizes = _sizes(cluster, leaders)
    reports = []
    for topic in topics:
        # Only a leader can return offsets.
        offsets = cluster.offsets(topic.name, leaders[topic.name])
        reports.append(
            TopicReport(
                name=topic.name,
                id=str(topic.topic_id),
                internal=topic.is_internal,
                partitions=[
                    PartitionReport(
                        partition=p.id,
                        leader=leaders[topic.name].get(p.id),
                        replicas=[node.id for node in p.replicas],
                        isr=[node.id for node in p.isr],
                        earliest=offsets[p.id].earliest if p.id in offsets else None,
                        latest=offsets[p.id].latest if p.id in offsets else None,
                        size=sizes.get((topic.name, p.id)),
                    )
                    for p in sorted(topic.partitions, key=lambda p: p.id)
                ],
                configs=configs[topic.name],
            )
        )
    return reports


def _configs(cluster: Cluster, names: Sequence[str]) -> dict[str, list[ConfigReport]]:
    resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
    futures = cluster.admin.describe_configs(list(resources.values()), request_timeout=REQUEST_TIMEOUT_S)
    configs = {}
    for name, resource in resources.items():
        entries = cluster.answer(futures[resource], f"listing the settings of topic '{name}'").values()
        sourced = [(entry, _SOURCES.get(ConfigSource(entry.source))) for entry in entries]
        configs[name] = [
            ConfigReport(entry.name, entry.value, source)
            for entry, source in sorted(sourced, key=lambda pair: pair[0].name)
            if source is not None
        ]
    return configs


def _sizes(cluster: Cluster, leaders: Mapping[str, Mapping[int, int]]) -> dict[tuple[str, int], int]:
    """Return bytes on disk by topic and partition, from DescribeLogDirs (KIP-113), which confluent-kafka lacks."""
    logging.getLogger("kafka").addHandler(logging.NullHandler())
    from kafka.admin import KafkaAdminClient
    from kafka.errors import KafkaError

    sizes = {}
    try:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","), client_id="headrace-cli")
        try:
            brokers = admin.describe_log_dirs(topic_partitions=list(leaders))
        finally:
            admin.close()
    except KafkaError:
        # Sizes are optional: the broker may reject the request or not support it.
        return {}
    for broker in brokers:
        for log_dir in broker["log_dirs"]:
            for topic in log_dir["topics"]:
                for partition in topic["partitions"]:
                    index = partition["partition_index"]
                    if leaders[topic["name"]].get(index) == broker["broker"] and not partition["is_future_key"]:
                        sizes[topic["name"], index] = partition["partition_size"]
    return sizes


_PARTITION_COLUMNS = [
    Column("Partition", number=True),
    Column("Leader", number=True),
    Column("Replicas"),
    Column("ISR"),
    Column("Earliest", number=True),
    Column("Latest", number=True),
    Column("Records", number=True),
    Column("Size", number=True),
]


def print_reports(reports: Sequence[TopicReport]) -> None:
    """Print for people on a terminal; in a pipe, as tab-separated blocks, separated by empty lines."""
    on_terminal = output.stdout_is_terminal()
    for index, topic in enumerate(reports):
        if index:
            output.write_lines("")
        output.print_pairs(_summary(topic, on_terminal))
        output.write_lines("")
        rows = [_row(partition, on_terminal) for partition in topic.partitions]
        output.print_table(_PARTITION_COLUMNS, rows)
        if topic.configs:
            output.write_lines("")
            configs = [[config.name, config.value, config.source] for config in topic.configs]
            output.print_table([Column("Setting"), Column("Value"), Column("Set on")], configs)


def _summary(topic: TopicReport, on_terminal: bool) -> list[tuple[str, output.Cell]]:
    return [
        ("Topic", topic.name),
        ("Id", topic.id),
        *([("Internal", "yes")] if topic.internal else []),
        ("Partitions", len(topic.partitions)),
        ("Replicas", topic.replication_factor),
        ("Records", topic.records),
        ("Size", _size(topic.size, on_terminal)),
    ]


def _row(partition: PartitionReport, on_terminal: bool) -> list[output.Cell]:
    return [
        partition.partition,
        partition.leader,
        ",".join(map(str, partition.replicas)),
        ",".join(map(str, partition.isr)),
        partition.earliest,
        partition.latest,
        partition.records,
        _size(partition.size, on_terminal),
    ]


def _size(size: int | None, on_terminal: bool) -> output.Cell:
    return output.size(size) if on_terminal and size is not None else size
