"""`python -m bench --cluster`: three brokers and three replicas, compared with Apache Kafka 3.9 and 4.3.

The clusters take turns; the first round does not count. CPU is the time of all three brokers until the last replica
has the last record. Latency is measured with single records sent to the leader of one partition.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from bench import raw_client
from bench.clients import KafkaTools
from bench.clusters import Cluster, HeadraceCluster, KraftCluster, ZooKeeperCluster
from bench.figures import Figures
from bench.loads import LARGE_BATCHES, SMALL_BATCHES
from bench.topics import PARTITIONS

_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Scale:
    """Number of rounds, records per producer run, seconds per latency run, records per end-to-end run."""

    rounds: int
    records: int
    seconds: float
    end_to_end: int


FULL: Final = Scale(3, 2_000_000, 5.0, 5_000)
QUICK: Final = Scale(1, 500_000, 2.0, 1_000)


class ClusterFigures(Figures):
    """Rates, CPU and latencies of clusters of three brokers."""

    def __init__(self, scale: Scale, jars: Path, directory: Path, *, with_kafka: bool) -> None:
        super().__init__(jars, directory, with_kafka=with_kafka)
        self._scale = scale
        self._tools = KafkaTools(jars)
        zookeeper_jars = jars.with_name("kafka-3.9")
        self._clusters: list[Cluster] = [HeadraceCluster(directory / "headrace", zookeeper_jars)]
        if with_kafka:
            self._clusters.append(ZooKeeperCluster(directory / "kafka-3.9", zookeeper_jars))
            self._clusters.append(KraftCluster(directory / "kafka-4.3", jars))
        self._is_warm = False

    def measure(self) -> None:
        try:
            for cluster in self._clusters:
                cluster.start()
            for number in range(self._scale.rounds + 1):
                self._is_warm = number > 0
                for cluster in self._clusters[:: 1 if number % 2 else -1]:
                    self._round(cluster, number)
                    cluster.check_alive()
        finally:
            for cluster in self._clusters:
                cluster.remove()

    def _round(self, cluster: Cluster, number: int) -> None:
        for acks in ("1", "all"):
            for size, batches in (("small", SMALL_BATCHES), ("large", LARGE_BATCHES)):
                topic = f"produce-{acks}-{size}-{number}"
                cluster.create(topic, PARTITIONS)
                self._produce(cluster, topic, f"acks={acks}, {size} batches", [*batches, f"acks={acks}"])
                cluster.delete(topic)
        for size, batches in (("small", SMALL_BATCHES), ("large", LARGE_BATCHES)):
            topic = f"one-leader-{size}-{number}"
            cluster.create(topic, 1)
            self._follow(cluster, topic, f"acks=1, one leader, {size} batches", [*batches, "acks=1"])
            cluster.delete(topic)
        topic = f"latency-{number}"
        cluster.create(topic, 1)
        latencies = raw_client.synchronous(cluster.leader_port(topic), topic, self._scale.seconds, acks=-1)
        self._note("acks=all, one record at a time: p50 ms", cluster, latencies.p50)
        self._note("acks=all, one record at a time: p99 ms", cluster, latencies.p99)
        mean = self._tools.end_to_end(cluster, topic, records=self._scale.end_to_end, acks="all")
        self._note("acks=all, to a consumer: mean ms", cluster, mean)
        cluster.delete(topic)

    def _produce(self, cluster: Cluster, topic: str, label: str, properties: list[str]) -> None:
        records = self._scale.records
        before = cluster.cpu_seconds()
        rate = self._tools.produce(cluster, topic, records=records, warm_up=records // 4, properties=properties)
        _wait_for_replicas(cluster, topic, records)
        cpu = cluster.cpu_seconds() - before
        self._note(f"{label}: records per second", cluster, rate)
        self._note(f"{label}: CPU s per million, all brokers", cluster, cpu / records * 1e6)

    def _follow(self, cluster: Cluster, topic: str, label: str, properties: list[str]) -> None:
        """Record the CPU time of a follower as a share of its leader's."""
        records = self._scale.records // 4
        leader = cluster.leader(topic)
        before = {broker: broker.cpu_seconds() for broker in cluster.brokers}
        self._tools.produce(cluster, topic, records=records, warm_up=records // 4, properties=properties)
        _wait_for_replicas(cluster, topic, records, partitions=1)
        used = {broker: broker.cpu_seconds() - seconds for broker, seconds in before.items()}
        led = used.pop(leader)
        self._note(f"{label}: CPU of a follower / leader", cluster, sum(used.values()) / len(used) / led)

    def _note(self, row: str, cluster: Cluster, figure: float) -> None:
        if self._is_warm:
            self.note(row, cluster, figure)


def _wait_for_replicas(cluster: Cluster, topic: str, records: int, *, partitions: int = PARTITIONS) -> None:
    """Wait until the high watermarks show that all replicas have all records. Raises RuntimeError after a minute."""
    consumer = Consumer({"bootstrap.servers": cluster.address, "group.id": "bench", "log_level": 0})
    deadline = time.monotonic() + _TIMEOUT_S
    try:
        while True:
            ends = [
                consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_S)[1]
                for partition in range(partitions)
            ]
            if sum(ends) == records:
                return
            if sum(ends) > records or time.monotonic() > deadline:
                raise RuntimeError(f"{cluster.name} has {sum(ends):,} records in {topic}, but {records:,} were sent")
            time.sleep(0.02)
    finally:
        consumer.close()
