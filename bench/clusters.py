"""Clusters of three brokers: Headrace and Kafka 3.9, each with its own ZooKeeper, and Kafka 4.3 with KRaft.

All brokers of a cluster run on this machine, with data on the same file system.
"""

import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import SETTINGS, START_TIMEOUT_S, Broker, JavaBroker, free_port

BROKERS: Final = 3
_CLUSTER_ID: Final = "aGVhZHJhY2UtYmVuY2gxMg"
_SETTINGS: Final = {
    **SETTINGS,
    "default.replication.factor": str(BROKERS),
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": str(BROKERS),
    "transaction.state.log.replication.factor": str(BROKERS),
    "transaction.state.log.min.isr": "2",
}
_TIMEOUT_S: Final = 60.0


class HeadraceMember(Broker):
    name = "Headrace"

    def __init__(self, directory: Path, number: int, zookeeper: str) -> None:
        super().__init__(directory)
        joining = {"broker.id": str(number), "zookeeper.connect": zookeeper}
        self._settings = [f"--set={key}={value}" for key, value in {**_SETTINGS, **joining}.items()]

    def command(self) -> Sequence[str | Path]:
        data = self.directory / "data"
        return [sys.executable, "-m", "headrace", "start", "--listen", self.address, "--data", data, *self._settings]


class ZooKeeperMember(JavaBroker):
    name = "Kafka 3.9"

    def __init__(self, directory: Path, jars: Path, number: int, zookeeper: str) -> None:
        super().__init__(directory, jars)
        self.configure(
            {
                **_SETTINGS,
                "broker.id": str(number),
                "zookeeper.connect": zookeeper,
                "listeners": f"PLAINTEXT://{self.address}",
                "log.dirs": str(directory / "data"),
            }
        )


class KraftMember(JavaBroker):
    name = "Kafka 4.3"

    def __init__(self, directory: Path, jars: Path, number: int, voters: Sequence[int]) -> None:
        """`voters` are the ports of the controllers."""
        super().__init__(directory, jars)
        self.configure(
            {
                **_SETTINGS,
                "process.roles": "broker,controller",
                "node.id": str(number),
                "controller.quorum.voters": ",".join(f"{voter}@127.0.0.1:{port}" for voter, port in enumerate(voters)),
                "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{voters[number]}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(directory / "data"),
            }
        )
        self.format(_CLUSTER_ID)


class ZooKeeper(JavaBroker):
    """A single ZooKeeper server, from the jars of Kafka 3.9."""

    name = "ZooKeeper"
    java_options = ("-Xmx256M", "-XX:+UseSerialGC", "-Djava.awt.headless=true")

    def __init__(self, directory: Path, jars: Path) -> None:
        super().__init__(directory, jars)
        self.configure(
            {
                "dataDir": str(directory / "data"),
                "clientPort": str(self.port),
                "clientPortAddress": "127.0.0.1",
                "admin.enableServer": "false",
                "maxClientCnxns": "0",
            }
        )

    def command(self) -> Sequence[str | Path]:
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        return ["java", *self.java_options, "-cp", self._class_path, main, self._settings]


class Cluster(ABC):
    """Three brokers in a directory of their own, which `remove` deletes."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.others: list[Broker] = []
        """Processes to start before the brokers: ZooKeeper."""
        self.brokers = self.members()

    @abstractmethod
    def members(self) -> Sequence[Broker]:
        """Create the brokers, and add to `others` the processes that they need. Called once, by the constructor."""

    @property
    def address(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def start(self) -> None:
        """Start all processes, and wait until all brokers know each other. Raises RuntimeError if that fails."""
        for other in self.others:
            other.spawn()
            # Until something listens on the port, a connection to it may get the same local port and block it.
            other.wait_for_port()
        for broker in self.brokers:
            broker.spawn()
        for broker in self.brokers:
            broker.wait_for_answer()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not all(map(self._knows_all, self.brokers)):
            self.check_alive()
            if time.monotonic() > deadline:
                raise RuntimeError(f"the brokers of {self.name} did not all register within {START_TIMEOUT_S:.0f} s")
            time.sleep(0.2)

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic with three replicas, and wait until all are in sync. Raises RuntimeError or KafkaException."""
        admin = self._admin(self)
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                admin.create_topics([NewTopic(topic, partitions, BROKERS)])[topic].result(_TIMEOUT_S)
                break
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        while not self._is_in_sync(admin, topic, partitions):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the replicas of {topic} in {self.name} are not in sync after {_TIMEOUT_S:.0f} s")
            time.sleep(0.1)

    def delete(self, topic: str) -> None:
        admin = self._admin(self)  # kept in a variable: its requests are cancelled when it is collected
        admin.delete_topics([topic])[topic].result(_TIMEOUT_S)

    def leader_port(self, topic: str) -> int:
        """Return the port of the leader of partition 0. Raises RuntimeError if none after a minute."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            found = self._admin(self).list_topics(topic, timeout=_TIMEOUT_S)
            partitions = found.topics[topic].partitions
            if partitions and partitions[0].leader in found.brokers:  # the broker asked may not know the topic yet
                port: int = found.brokers[partitions[0].leader].port
                return port
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} has no leader of {topic}-0 after {_TIMEOUT_S:.0f} s")
            time.sleep(0.1)

    def leader(self, topic: str) -> Broker:
        """Return the leader of the topic's first partition."""
        port = self.leader_port(topic)
        return next(broker for broker in self.brokers if broker.address.endswith(f":{port}"))

    def cpu_seconds(self) -> float:
        """Return the CPU time of all brokers, without ZooKeeper."""
        return sum(broker.cpu_seconds() for broker in self.brokers)

    def check_alive(self) -> None:
        """Raise RuntimeError if a process has exited, with the end of its log."""
        for broker in (*self.others, *self.brokers):
            broker.check_alive()

    def remove(self) -> None:
        """Stop all processes and delete the directory."""
        for broker in (*self.brokers, *self.others):
            broker.remove()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _knows_all(self, broker: Broker) -> bool:
        return len(self._admin(broker).list_topics(timeout=_TIMEOUT_S).brokers) == BROKERS

    @staticmethod
    def _admin(target: "Cluster | Broker") -> AdminClient:
        return AdminClient({"bootstrap.servers": target.address, "log_level": 0})

    @staticmethod
    def _is_in_sync(admin: AdminClient, topic: str, partitions: int) -> bool:
        found = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions
        return len(found) == partitions and all(len(partition.isrs) == BROKERS for partition in found.values())


class HeadraceCluster(Cluster):
    name = "Headrace"

    def __init__(self, directory: Path, zookeeper_jars: Path) -> None:
        self._jars = zookeeper_jars
        super().__init__(directory)

    def members(self) -> Sequence[Broker]:
        zookeeper = ZooKeeper(self.directory / "zookeeper", self._jars)
        self.others.append(zookeeper)
        return [
            HeadraceMember(self.directory / f"broker-{number}", number, zookeeper.address) for number in range(BROKERS)
        ]


class ZooKeeperCluster(Cluster):
    name = "Kafka 3.9"

    def __init__(self, directory: Path, zookeeper_jars: Path) -> None:
        self._jars = zookeeper_jars
        super().__init__(directory)

    def members(self) -> Sequence[Broker]:
        zookeeper = ZooKeeper(self.directory / "zookeeper", self._jars)
        self.others.append(zookeeper)
        return [
            ZooKeeperMember(self.directory / f"broker-{number}", self._jars, number, zookeeper.address)
            for number in range(BROKERS)
        ]


class KraftCluster(Cluster):
    name = "Kafka 4.3"

    def __init__(self, directory: Path, jars: Path) -> None:
        self._jars = jars
        super().__init__(directory)

    def members(self) -> Sequence[Broker]:
        voters = [free_port() for _ in range(BROKERS)]
        return [
            KraftMember(self.directory / f"broker-{number}", self._jars, number, voters) for number in range(BROKERS)
        ]
