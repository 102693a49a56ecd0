"""Kafka 3.9 brokers and a Headrace broker as one cluster with ZooKeeper, on this machine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.adoption.kafka import WithZooKeeper, ZooKeeper
from tests.cluster.conftest import HEADRACE, SESSION_TIMEOUT_MS, leaders, member, metadata
from tests.support import topics
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

GROUPS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
KAFKAS: Final = (7, 8)
_WITHIN_S: Final = 120.0


class MixedCluster:
    """The running brokers by id: one Headrace broker, the others Kafka. Their data is in `base`."""

    def __init__(
        self, base: Path, zookeeper: str, kafkas: Mapping[int, WithZooKeeper], headrace: BrokerProcess
    ) -> None:
        self.base = base
        self.zookeeper = zookeeper
        """Its address."""
        self.kafkas = dict(kafkas)
        self.headrace = headrace

    @property
    def brokers(self) -> tuple[int, ...]:
        return (HEADRACE, *self.kafkas)

    @property
    def bootstraps(self) -> dict[int, str]:
        return {HEADRACE: self.headrace.bootstrap} | {number: kafka.bootstrap for number, kafka in self.kafkas.items()}

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(self.bootstraps.values())

    def create_topic(self, name: str, replicas: Sequence[Sequence[int]], **config: Any) -> None:
        """Create a topic with these replicas for each partition, and wait until all brokers know its leaders."""
        topics.create_topic(self.bootstrap, name, replicas=replicas, **config)
        self.wait_for_leaders(name, [brokers[0] for brokers in replicas])

    def wait_for_leaders(self, topic: str, expected: Sequence[int]) -> None:
        """Wait until all brokers report these leaders."""
        for bootstrap in self.bootstraps.values():
            wait_for(
                lambda bootstrap=bootstrap: leaders(bootstrap, topic) == dict(enumerate(expected)),  # type: ignore[misc]
                f"{topic} has the leaders {expected} at {bootstrap}",
                timeout_s=_WITHIN_S,
                interval_s=0.1,
            )

    def wait_for_topic(self, topic: str, partitions: int) -> None:
        """Wait until all brokers know a leader of every partition."""
        for bootstrap in self.bootstraps.values():
            wait_for(
                lambda bootstrap=bootstrap: self._knows(bootstrap, topic, partitions),  # type: ignore[misc]
                f"{bootstrap} knows the leaders of {topic}",
                timeout_s=_WITHIN_S,
                interval_s=0.1,
            )

    def _knows(self, bootstrap: str, topic: str, partitions: int) -> bool:
        known = leaders(bootstrap, topic)
        return len(known) == partitions and set(known.values()) <= set(self.brokers)

    def wait_until_complete(self) -> None:
        """Wait until all brokers know each other, and know a leader of every partition."""
        for bootstrap in self.bootstraps.values():
            wait_for(
                lambda bootstrap=bootstrap: self._is_complete(bootstrap),  # type: ignore[misc]
                f"{bootstrap} knows all brokers and leaders",
                timeout_s=_WITHIN_S,
                interval_s=0.1,
            )

    def _is_complete(self, bootstrap: str) -> bool:
        try:
            cluster = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=10)
        except KafkaException:
            return False
        known = {broker["node_id"] for broker in metadata(bootstrap)["brokers"]}
        partitions = [item for topic in cluster.topics.values() for item in topic.partitions.values()]
        return known == set(self.brokers) and all(item.leader in self.brokers for item in partitions)


@contextmanager
def mixed_cluster(
    base: Path,
    settings: Mapping[str, object] | None = None,
    *,
    kafkas: Sequence[int] = KAFKAS,
    note: Callable[[str], None] = lambda _: None,
) -> Iterator[MixedCluster]:
    """Start ZooKeeper, Kafka and Headrace with `settings`; `note` is called with every step."""
    wanted = {name: str(value) for name, value in (settings or {}).items()}
    with ExitStack() as running:
        note("ZooKeeper")
        zookeeper = running.enter_context(ZooKeeper(base / "zookeeper"))
        started = {number: _kafka(base / f"kafka-{number}", zookeeper, number, wanted) for number in kafkas}
        note(f"Kafka, brokers {' and '.join(map(str, kafkas))}")
        for kafka in started.values():
            running.callback(kafka.sigkill)
        with ThreadPoolExecutor() as threads:
            list(threads.map(lambda kafka: kafka.start(), started.values()))
        note(f"Headrace, broker {HEADRACE}")
        headrace = running.enter_context(member(base / "headrace", zookeeper.address, **wanted))
        cluster = MixedCluster(base, zookeeper.address, started, headrace)
        cluster.wait_until_complete()
        yield cluster


def _kafka(directory: Path, zookeeper: ZooKeeper, number: int, settings: Mapping[str, str]) -> WithZooKeeper:
    kafka = WithZooKeeper(directory, zookeeper.address)
    # A Kafka broker that has just started knows neither topics nor other brokers. It would try to create the topic that
    # a client asks for, and answer INVALID_REPLICATION_FACTOR, which clients do not retry.
    kafka.settings |= {"broker.id": str(number), "auto.create.topics.enable": "false"}
    kafka.settings |= {"zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS), **settings}
    return kafka
