"""Three brokers, of Headrace or Kafka 3.9, on one ZooKeeper, and the operations of an administrator on them."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError

from tests.adoption.kafka import WithZooKeeper
from tests.cluster.conftest import member, metadata
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import ELECT, REASSIGN, TOPICS, shared_tools
from tests.support.waiting import wait_for

IDS: Final = (1, 2, 3)
SETTINGS: Final[Mapping[str, object]] = {
    "offsets.topic.replication.factor": 3,
    "min.insync.replicas": 2,
    "default.replication.factor": 3,
    "zookeeper.session.timeout.ms": 6000,
    # Longer than the session timeout: the controller removes dead brokers from the ISR, not the leaders.
    "replica.lag.time.max.ms": 20_000,
    # Leaders move only when a test asks for it.
    "auto.leader.rebalance.enable": "false",
    "log.segment.delete.delay.ms": 0,
}
_WITHIN_S: Final = 60.0


class Broker(Protocol):
    """A broker process of either kind."""

    @property
    def bootstrap(self) -> str: ...
    def start(self) -> None: ...
    def sigkill(self) -> None: ...
    def log(self) -> str: ...


def headrace(
    directory: Path, zookeeper: str, broker_id: int, *, two_disks: bool = False, **settings: object
) -> BrokerProcess:
    """Return a broker with one log directory, or with two: `data`, and `data` with `-2` appended."""
    data = directory / f"headrace{broker_id}"
    settings = {"broker.id": broker_id, **SETTINGS, **settings}
    return member(data, zookeeper, *([second_disk(data)] if two_disks else []), **settings)


def kafka(
    directory: Path, zookeeper: str, broker_id: int, *, two_disks: bool = False, **settings: object
) -> WithZooKeeper:
    own = {name: str(value) for name, value in {**SETTINGS, "broker.id": broker_id, **settings}.items()}
    broker = WithZooKeeper(directory / f"kafka{broker_id}", zookeeper, own)
    # The constructor sets these itself.
    broker.settings["broker.id"] = str(broker_id)
    # The other cluster has the default.
    del broker.settings["log.index.size.max.bytes"]
    if two_disks:
        broker.settings["log.dirs"] = f"{broker.data},{second_disk(broker.data)}"
    return broker


def second_disk(data: Path) -> Path:
    """Return the second log directory of a broker with this first one."""
    return data.with_name(data.name + "-2")


class Trio:
    """The running brokers of a cluster, by id."""

    def __init__(self, zookeeper: str, brokers: Mapping[int, Any]) -> None:
        self.brokers = dict(brokers)
        self.zookeeper = KazooClient(zookeeper)
        self.zookeeper.start(30)

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        self.settle()

    def close(self) -> None:
        self.zookeeper.stop()
        self.zookeeper.close()
        for broker in self.brokers.values():
            broker.sigkill()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def read(self, path: str) -> Any:
        """Return the JSON in a node; None if it does not exist."""
        try:
            data = self.zookeeper.get(path)[0]
        except NoNodeError:
            return None
        return json.loads(data) if data else {}

    def controller(self) -> int:
        """Wait until a broker is the controller, and return it."""
        found = wait_for(lambda: self.read("/controller"), "a controller", timeout_s=_WITHIN_S)
        return int(found["brokerid"])

    def state(self, topic: str, partition: int) -> dict[str, Any]:
        return dict(self.read(f"/brokers/topics/{topic}/partitions/{partition}/state") or {})

    def settle(self, *stopped: int) -> None:
        """Wait until all brokers but `stopped` announce each other, and nothing is in progress or out of sync."""
        running = set(self.brokers) - set(stopped)
        for broker_id in running:
            bootstrap = self.brokers[broker_id].bootstrap
            wait_for(
                lambda: {item["node_id"] for item in metadata(bootstrap)["brokers"]} == running,  # noqa: B023
                f"brokers {running} at {broker_id}",
                timeout_s=_WITHIN_S,
            )
        wait_for(lambda: self._is_settled(running), "a settled cluster", timeout_s=_WITHIN_S)

    def _is_settled(self, running: set[int]) -> bool:
        try:
            return not self.unsettled(running)
        except (ConnectionLoss, SessionExpiredError):
            return False  # after an outage of ZooKeeper, the first requests of this client may fail, too

    def unsettled(self, running: set[int]) -> list[str]:
        """Return what is in progress, offline although a replica runs, or out of sync."""
        found = [f"/admin/{name}" for name in self.zookeeper.get_children("/admin") if name != "delete_topics"]
        found += self.zookeeper.get_children("/admin/delete_topics")
        for topic in self.zookeeper.get_children("/brokers/topics"):
            node = self.read(f"/brokers/topics/{topic}") or {}
            if node.get("adding_replicas") or node.get("removing_replicas"):
                found.append(f"{topic} moves")
            for index, replicas in node.get("partitions", {}).items():
                state = self.state(topic, int(index))
                alive = running & set(replicas)
                if alive and (state.get("leader") not in alive or not alive <= set(state["isr"])):
                    found.append(f"{topic}-{index}: {state}")
        return found

    # Operations

    def run(self, tool: str, *arguments: str) -> str:
        """Run one of Kafka's tools, and return what it prints. Raises AssertionError if it fails."""
        done = shared_tools().run(tool, "--bootstrap-server", self.bootstrap, *arguments)
        assert done.status == 0, f"{tool} {arguments}:\n{done.printed}\n{done.errors}"
        return done.printed

    def create(self, topic: str, *replicas: Sequence[int], **configs: str) -> None:
        """Create a topic with one partition per list of replicas."""
        assignment = ",".join(":".join(map(str, brokers)) for brokers in replicas)
        settings = [argument for name, value in configs.items() for argument in ("--config", f"{name}={value}")]
        self.run(TOPICS, "--create", "--topic", topic, "--replica-assignment", assignment, *settings)

    def grow(self, topic: str, *replicas: Sequence[int]) -> None:
        """Give a topic these partitions, old ones included."""
        assignment = ",".join(":".join(map(str, brokers)) for brokers in replicas)
        self.run(
            TOPICS,
            "--alter",
            "--topic",
            topic,
            "--partitions",
            str(len(replicas)),
            "--replica-assignment",
            assignment,
        )

    def delete(self, topic: str) -> None:
        self.run(TOPICS, "--delete", "--topic", topic)

    def elect(self, kind: str, *topic_partition: object) -> str:
        """Elect a leader (`preferred` or `unclean`), for one partition or for all."""
        if not topic_partition:
            return self.run(ELECT, "--election-type", kind, "--all-topic-partitions")
        topic, partition = map(str, topic_partition)
        return self.run(ELECT, "--election-type", kind, "--topic", topic, "--partition", partition)

    def reassign(self, directory: Path, moves: Mapping[tuple[str, int], Sequence[int]], *options: str) -> str:
        """Execute, verify (`--verify`) or cancel (`--cancel`) a reassignment."""
        plan = directory / "plan.json"
        partitions = [
            {"topic": topic, "partition": index, "replicas": list(replicas)}
            for (topic, index), replicas in moves.items()
        ]
        plan.write_text(json.dumps({"version": 1, "partitions": partitions}))
        return self.run(REASSIGN, "--reassignment-json-file", str(plan), *(options or ("--execute",)))


_RANDOM: Final = re.compile(r'"(topic_id|timestamp|host|id)":"[^"]*"|"(port|jmx_port)":-?\d+|"endpoints":\[[^]]*\]')
_OWN: Final = ("/zookeeper", "/config/changes/", "/controller", "/cluster/id", "/brokers/ids/")


def tree(client: KazooClient, path: str = "/") -> dict[str, Any]:
    """Return the nodes of a tree and their contents, without ids, times, and what belongs to single brokers."""
    found: dict[str, Any] = {}
    for name in sorted(client.get_children(path)):
        child = f"{path.rstrip('/')}/{name}"
        if child.startswith(_OWN):
            continue
        text = _RANDOM.sub('"":""', (client.get(child)[0] or b"").decode())
        try:
            value = json.loads(text) if text else None
        except ValueError:
            value = text
        if isinstance(value, dict) and "isr" in value:
            value["isr"] = sorted(value["isr"])  # a set
        found[child] = value
        found |= tree(client, child)
    return found
