"""A cluster of processes: ZooKeeper, and brokers of Kafka and Headrace."""

import contextlib
import json
import logging
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from headrace.wire.apis import ApiKey
from tests.adoption.kafka import WithZooKeeper, ZooKeeper
from tests.cluster.conftest import wait_for_brokers
from tests.support.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.replica_logs import Compared, compare
from tests.support.topics import create_topic, ends
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

HEADRACE: Final = 4
SESSION_TIMEOUT_MS: Final = 6000
INTERNAL_TOPICS: Final = ("__consumer_offsets", "__transaction_state")
_BLOCKED: Final = "The event loop has been blocked"
_WITHIN_S: Final = 180.0
"""Generous limit for waits; it does not measure speed."""

_SETTINGS: Final[Mapping[str, str]] = {
    "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    # The replicas of compacted topics are equal only before their cleaners have run.
    "log.cleaner.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "num.partitions": "1",
}

Say = Callable[[str], None]
"""Reports progress."""


class Broker(Protocol):
    """A process of either kind."""

    data: Path

    @property
    def bootstrap(self) -> str: ...
    @property
    def running(self) -> bool: ...
    def start(self) -> None: ...
    def sigkill(self) -> None: ...
    def sigterm(self) -> Any: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def log(self) -> str: ...


class State(NamedTuple):
    """The state of a partition in ZooKeeper."""

    leader: int
    leader_epoch: int
    isr: frozenset[int]


class Rig:
    """A context manager. Everything that the processes write is below `base`."""

    def __init__(
        self,
        base: Path,
        *,
        kafkas: Sequence[int] = (),
        headraces: Sequence[int] = (),
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`kafkas` and `headraces` are the ids of the brokers to start."""
        base.mkdir(parents=True, exist_ok=True)
        self._exits = contextlib.ExitStack()
        self._base = base
        self._ids = (kafkas, headraces)
        self._settings = {**_SETTINGS, **(settings or {})}
        self._address = ""
        self.brokers: dict[int, Broker] = {}
        """The brokers that should be running."""
        self.headraces: dict[int, Broker] = {}
        """All Headrace brokers, those that have left the cluster included."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as exits:
            zookeeper = exits.enter_context(ZooKeeper(self._base / "zookeeper"))
            logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # it logs every attempt to connect
            self.zookeeper = KazooClient(zookeeper.address)
            self.zookeeper.start(60)
            exits.callback(self.zookeeper.close)
            exits.callback(self.zookeeper.stop)
            self._address = zookeeper.address
            kafkas, headraces = self._ids
            exits.callback(self._end)
            brokers = [self.kafka(broker_id) for broker_id in kafkas]
            brokers += [self.headrace(broker_id) for broker_id in headraces]
            self.brokers = dict(zip((*kafkas, *headraces), brokers, strict=True))
            brokers[0].start()  # it creates the cluster
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda broker: broker.start(), brokers[1:]))
            self.wait_for_brokers(*self.brokers)
            for broker in brokers:
                # A broker that the controller has not told of the others yet answers without brokers. librdkafka then
                # looks for the controller no further.
                wait_for_brokers(broker.bootstrap, *self.brokers)
            self._exits = exits.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _end(self) -> None:
        for broker in self.brokers.values():
            if broker.running:
                broker.sigkill()

    def kafka(self, broker_id: int, *, like: Broker | None = None) -> Broker:
        """Return a Kafka broker, not yet started; `like` is a stopped broker whose data directory it takes over."""
        kafka = WithZooKeeper(
            self._base / f"kafka-{broker_id}", self._address, self._settings, data=like.data if like else None
        )
        kafka.settings["broker.id"] = str(broker_id)
        return kafka

    def headrace(self, broker_id: int, *, like: Broker | None = None) -> Broker:
        """Return a Headrace broker, not yet started; `like` is a stopped broker whose data directory it takes over."""
        headrace = BrokerProcess(
            like.data if like else self._base / f"headrace-{broker_id}",
            settings={**self._settings, "broker.id": broker_id, "zookeeper.connect": self._address},
            port=free_port(),
        )
        self.headraces[broker_id] = headrace
        return headrace

    def is_headrace(self, broker_id: int) -> bool:
        return isinstance(self.brokers[broker_id], BrokerProcess)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    # The cluster, as ZooKeeper has it

    def live_brokers(self) -> set[int]:
        return {int(name) for name in self.zookeeper.get_children("/brokers/ids")}

    def wait_for_brokers(self, *brokers: int) -> None:
        """Wait until exactly these brokers are registered."""

        def are_registered() -> bool:
            self._revive(*brokers)
            return self.live_brokers() == set(brokers)

        wait_for(are_registered, f"brokers {brokers}", timeout_s=_WITHIN_S)

    def _revive(self, *brokers: int) -> None:
        """Start brokers again, as a supervisor would, that have ended because this machine is too busy."""
        for broker_id in brokers:
            broker = self.brokers[broker_id]
            if not broker.running and _BLOCKED in broker.log()[-10_000:]:
                self._start(broker)

    def _start(self, broker: Broker) -> None:
        for _ in range(5):
            try:
                broker.start()
            except AssertionError:
                if _BLOCKED not in broker.log()[-10_000:]:
                    raise
            else:
                return
        broker.start()

    def ended_themselves(self) -> int:
        """Return the number of brokers that have ended because their event loops were blocked."""
        return sum(broker.log().count(_BLOCKED) for broker in self.headraces.values())

    def controller(self) -> int | None:
        """Return the controller; None if there is none."""
        try:
            return int(json.loads(self.zookeeper.get("/controller")[0])["brokerid"])
        except NoNodeError:
            return None

    def wait_for_controller(self) -> int:
        """Wait until there is a controller, and return it."""
        return wait_for(lambda: self.controller() or 0, "a controller")

    def topics(self) -> list[str]:
        return sorted(self.zookeeper.get_children("/brokers/topics"))

    def states(self, topic: str) -> dict[int, State]:
        """Return the states of a topic's partitions, except those without one."""
        found = {}
        for name in self._children(f"/brokers/topics/{topic}/partitions"):
            path = f"/brokers/topics/{topic}/partitions/{name}/state"
            if self.zookeeper.exists(path) is not None:
                state = json.loads(self.zookeeper.get(path)[0])
                found[int(name)] = State(state["leader"], state["leader_epoch"], frozenset(state["isr"]))
        return found

    def replicas(self, topic: str) -> dict[int, list[int]]:
        """Return the replicas of every partition."""
        node = json.loads(self.zookeeper.get(f"/brokers/topics/{topic}")[0])
        return {int(partition): replicas for partition, replicas in node["partitions"].items()}

    def _children(self, path: str) -> list[str]:
        return self.zookeeper.get_children(path) if self.zookeeper.exists(path) is not None else []

    def is_in_sync(self, topic: str) -> bool:
        """Return True if all replicas of a topic are in sync."""
        states = self.states(topic)
        return all(
            partition in states and states[partition].isr == set(replicas)
            for partition, replicas in self.replicas(topic).items()
        )

    def wait_for_sync(self, *topics: str) -> None:
        """Wait until all replicas of these topics, or of all topics, are in sync."""

        def is_in_sync(topic: str) -> bool:
            self._revive(*self.brokers)
            return self.is_in_sync(topic)

        for topic in topics or self.topics():
            wait_for(
                partial(is_in_sync, topic), f"all replicas of {topic} in sync", timeout_s=_WITHIN_S, interval_s=0.1
            )

    def is_reassigning(self) -> bool:
        """Return True while replicas are being added or removed."""
        return any(
            node["adding_replicas"] or node["removing_replicas"]
            for topic in self.topics()
            for node in [json.loads(self.zookeeper.get(f"/brokers/topics/{topic}")[0])]
        )

    def create(self, topic: str, assignment: Sequence[Sequence[int]], **config: Any) -> None:
        """Create a topic with these replicas of every partition, and wait until they are in sync."""
        create_topic(self.bootstrap, topic, replicas=assignment, **config)
        wait_for(lambda: topic in self.topics(), topic)
        self.wait_for_sync(topic)

    def elect_preferred_leaders(self) -> None:
        """Make the first replica of every partition its leader, if it is in sync."""
        controller = self.wait_for_controller()
        with WireClient(self.brokers[controller].bootstrap) as client:
            fields = {"election_type": 0, "topic_partitions": None, "timeout": 60_000}
            answer = client.ask(ApiKey.ELECT_LEADERS, 2, fields)
        assert answer["error_code"] == "none", answer

    # Processes

    def restart(self, *broker_ids: int) -> None:
        """Start brokers that were killed, at once, and wait until all brokers are registered."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(self._restart, broker_ids))
        self.wait_for_brokers(*self.brokers)

    def _restart(self, broker_id: int) -> None:
        if not self.is_headrace(broker_id):  # Kafka does not start before its old registration has expired
            path = f"/brokers/ids/{broker_id}"
            wait_for(lambda: self.zookeeper.exists(path) is None, f"{path} is gone", timeout_s=_WITHIN_S)
        self._start(self.brokers[broker_id])

    # Results

    def high_watermarks(self, topic: str) -> dict[int, int]:
        """Return the high watermarks by partition, as the leaders report them."""
        return dict(enumerate(ends(self.bootstrap, topic, len(self.replicas(topic)))))

    def compare(self, topic: str, ends: Mapping[int, int]) -> Compared:
        """Compare the replicas of every partition below its high watermark, which `ends` contains.

        Raises UnequalLogsError.
        """
        total = Compared(0, 0, 0)
        for partition, replicas in self.replicas(topic).items():
            directories = {
                f"broker {replica}": self.brokers[replica].data / f"{topic}-{partition}" for replica in replicas
            }
            total += compare(f"{topic}-{partition}", directories, first=0, end=ends[partition])
        return total


def run_java(jars: Path, main: str, *arguments: str, stderr: bool = False) -> str:
    """Run one of Kafka's tools, and return what it prints. Raises AssertionError if it fails."""
    command = ["java", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*", main, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{main} {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr if stderr else done.stdout
