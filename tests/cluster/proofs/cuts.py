"""Network cuts between brokers, and between brokers and ZooKeeper, in both directions and in one.

Brokers 1 to 3 have all replicas; broker 4 has none and is the controller at first. All hosts are network namespaces.
Packets of a cut way vanish. Producers reach all brokers all the time, and also write to leaders that are cut off.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.clock import now_ms
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch
from tests.adoption.kafka import Java, WithZooKeeper, zookeeper_jars
from tests.cluster.proofs.load import NOISE, Load
from tests.cluster.proofs.network import Network
from tests.cluster.proofs.rig import Say
from tests.cluster.proofs.verdict import elect_preferred_leaders, verify
from tests.cluster.proofs.zookeepers import Ensemble, Host
from tests.cluster.trio import SETTINGS, Trio
from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

TOPIC: Final = "cut"
_REPLICAS: Final = ([1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2], [2, 1, 3], [3, 2, 1])
_CONTROLLER: Final = 4
_ZOOKEEPER: Final = "zookeeper"
_PORT: Final = 9092
_SETTINGS: Final = {
    **SETTINGS,
    "replica.lag.time.max.ms": 5000,
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
}
_WITHIN_S: Final = 120.0
_STEADY_S: Final = 8.0
"""Longer than the session timeout and `replica.lag.time.max.ms`: time for something to go wrong."""
_WAYS: Final = ("both", "there", "back")


class Plan(NamedTuple):
    seed: int
    rounds: int = 1
    rate: float = 50.0
    kafka: bool = False
    """Run Apache Kafka 3.9 instead of Headrace."""
    only: str = ""
    """The name of the cuts to run; all by default."""


class _State(NamedTuple):
    leader: int
    leader_epoch: int
    isr: frozenset[int]


class _Figures:
    def __init__(self) -> None:
        self.cuts = 0
        self.refused = 0
        self.slowest_heal_s = 0.0


class _Scene:
    """The running cluster, its load, and what a cut is expected to do."""

    def __init__(self, trio: Trio, network: Network, load: Load, say: Say) -> None:
        self.trio = trio
        self.load = load
        self.say = say
        self._network = network

    def states(self) -> dict[int, _State]:
        found = {}
        for partition in range(len(_REPLICAS)):
            state = self.trio.state(TOPIC, partition)
            found[partition] = _State(state["leader"], state["leader_epoch"], frozenset(state["isr"]))
        return found

    def registered(self) -> set[int]:
        return {int(name) for name in self.trio.zookeeper.get_children("/brokers/ids")}

    def cut(self, one: str, other: str, way: str) -> contextlib.AbstractContextManager[None]:
        ways = {"both": ((one, other), (other, one)), "there": ((one, other),), "back": ((other, one),)}
        return self._network.cut(*ways[way])

    def progress(self) -> None:
        """Wait until every partition acknowledges records."""
        before = [written.acknowledged for written in self.load.written]
        wait_for(
            lambda: all(written.acknowledged > count for written, count in zip(self.load.written, before, strict=True)),
            "acknowledged records in all partitions",
            timeout_s=_WITHIN_S,
        )
        self.load.check()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        wait_for(condition, what, timeout_s=_WITHIN_S, interval_s=0.1)

    def produce(self, broker: int, partition: int) -> str:
        """Return the answer of a broker to a record with acks=all."""
        batch = build_batch([RecordData(None, NOISE + b"direct", now_ms())])
        data = [{"name": TOPIC, "partition_data": [{"index": partition, "records": batch}]}]
        fields = {"acks": -1, "timeout": 2000, "topic_data": data}
        with WireClient(self.trio.brokers[broker].bootstrap) as client:
            answer = client.ask(ApiKey.PRODUCE, 9, fields)
        return str(answer["responses"][0]["partition_responses"][0]["error_code"])


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if anything is lost, or goes elsewhere than it should."""
    hosts = [_ZOOKEEPER, *(_host(broker_id) for broker_id in (1, 2, 3, _CONTROLLER))]
    with Network(hosts) as network:
        zookeeper_host = Host(network.address(_ZOOKEEPER), network.launcher(_ZOOKEEPER))
        with Ensemble(base, [zookeeper_host]) as zookeeper:
            begin = _kafka if plan.kafka else _headrace
            brokers = {
                broker_id: begin(base, zookeeper.address, broker_id, network)
                for broker_id in (_CONTROLLER, 1, 2, 3)  # the first one becomes the controller
            }
            trio = Trio(zookeeper.address, brokers)
            try:
                trio.start()
                return _run(plan, trio, network, say)
            finally:
                trio.close()


def _run(plan: Plan, trio: Trio, network: Network, say: Say) -> dict[str, Any]:
    create_topic(trio.bootstrap, TOPIC, replicas=_REPLICAS)
    trio.settle()
    partitions = len(_REPLICAS)
    load = Load(trio.bootstrap, TOPIC, partitions, transactional=0, rate=plan.rate, seed=plan.seed)
    figures = _Figures()
    scene = _Scene(trio, network, load, say)
    with load:
        scene.progress()
        for name, act in _ACTS.items():
            for way in _WAYS * plan.rounds:
                if plan.only in name:
                    figures.cuts += 1
                    _play(scene, name, act, way, figures)
        load.progress()
    trio.settle()
    say(f"{load.acknowledged} records acknowledged; reading and comparing")
    return {
        "seed": plan.seed,
        "cuts": figures.cuts,
        "records refused by leaders that were cut off": figures.refused,
        "records acknowledged by two leaders": 0,
        "longest time until all is in sync again (s)": round(figures.slowest_heal_s, 1),
        **verify(trio, TOPIC, partitions, load),
    }


_Act = Callable[[_Scene, str, _Figures], contextlib.AbstractContextManager[None]]


def _play(scene: _Scene, name: str, act: _Act, way: str, figures: _Figures) -> None:
    scene.say(f"{name}, {way}: controller {scene.trio.controller()}")
    started = time.monotonic()
    with act(scene, way, figures):
        lasted = time.monotonic() - started
    healed = time.monotonic()
    scene.trio.settle()
    seconds = time.monotonic() - healed
    figures.slowest_heal_s = max(figures.slowest_heal_s, seconds)
    scene.progress()
    assert scene.registered() == set(scene.trio.brokers)
    elect_preferred_leaders(scene.trio)
    scene.trio.settle()
    scene.say(
        f"  in sync {seconds:.1f} s after a cut of {lasted:.0f} s; controller {scene.trio.controller()}, "
        f"{scene.load.acknowledged} records acknowledged"
    )


@contextlib.contextmanager
def _leader_and_follower(scene: _Scene, way: str, _: _Figures) -> Iterator[None]:
    """Either removes the other from the in-sync replicas; nobody else leads, and all partitions accept records."""
    before = scene.states()
    with scene.cut(_host(1), _host(2), way):
        scene.wait(
            lambda: all(not {1, 2} <= state.isr for state in scene.states().values() if state.leader in (1, 2)),
            "leaders without the follower that they do not reach",
        )
        scene.progress()
        after = scene.states()
        assert _leaders(after) == _leaders(before), f"{before} became {after}"
        assert all(state.isr == {1, 2, 3} for state in after.values() if state.leader == 3), after
        yield


@contextlib.contextmanager
def _broker_and_zookeeper(scene: _Scene, way: str, figures: _Figures) -> Iterator[None]:
    """The session expires, and others lead. The broker acknowledges nothing, although it may think that it leads."""
    controller = scene.trio.controller()
    (broker,) = {1} if controller != 1 else {2}
    led = [partition for partition, state in scene.states().items() if state.leader == broker]
    assert led
    with scene.cut(_host(broker), _ZOOKEEPER, way):
        scene.wait(lambda: broker not in scene.registered(), f"broker {broker} has expired")
        _leaves(scene, broker, led, figures)
        assert scene.trio.controller() == controller
        yield


@contextlib.contextmanager
def _controller_and_zookeeper(scene: _Scene, way: str, figures: _Figures) -> Iterator[None]:
    """Another broker becomes the controller, and leads what the old one led."""
    controller = scene.trio.controller()
    led = [partition for partition, state in scene.states().items() if state.leader == controller]
    epoch = int(scene.trio.zookeeper.get("/controller_epoch")[0])
    with scene.cut(_host(controller), _ZOOKEEPER, way):
        scene.wait(lambda: controller not in scene.registered(), f"broker {controller} has expired")
        scene.wait(lambda: scene.trio.controller() != controller, "another controller")
        _leaves(scene, controller, led, figures)
        yield
    assert int(scene.trio.zookeeper.get("/controller_epoch")[0]) == epoch + 1


def _leaves(scene: _Scene, broker: int, led: list[int], figures: _Figures) -> None:
    """Wait until others lead, and check that the broker acknowledges nothing any more."""
    scene.wait(
        lambda: all(broker not in {state.leader, *state.isr} for state in scene.states().values()),
        f"partitions without broker {broker}",
    )
    for partition in led:
        error = scene.produce(broker, partition)
        assert error != "none", f"broker {broker} acknowledged a record of {TOPIC}-{partition}, which another leads"
        figures.refused += 1
    scene.progress()


@contextlib.contextmanager
def _broker_and_controller(scene: _Scene, way: str, _: _Figures) -> Iterator[None]:
    """Nothing changes for what the broker leads and follows. It learns of a new topic afterwards."""
    controller = scene.trio.controller()
    assert controller == _CONTROLLER, "the controller must have no replicas"
    before = scene.states()
    topic = f"during-a-cut-{way}-{int(time.monotonic())}"
    with scene.cut(_host(1), _host(controller), way):
        ends = time.monotonic() + _STEADY_S
        scene.progress()
        create_topic(scene.trio.bootstrap, topic, replicas=[[2, 1, 3], [3, 1, 2]])
        while time.monotonic() < ends:
            scene.progress()
        after = scene.states()
        assert after == before, f"{before} became {after}"
        assert scene.trio.controller() == controller
        yield


def _leaders(states: dict[int, _State]) -> list[int]:
    return [state.leader for state in states.values()]


_ACTS: Final[dict[str, _Act]] = {
    "leader and follower": _leader_and_follower,
    "broker and controller": _broker_and_controller,
    "broker and ZooKeeper": _broker_and_zookeeper,
    "controller and ZooKeeper": _controller_and_zookeeper,
}


def _host(broker_id: int) -> str:
    return f"broker-{broker_id}"


def _headrace(base: Path, zookeeper: str, broker_id: int, network: Network) -> BrokerProcess:
    host = _host(broker_id)
    return BrokerProcess(
        base / f"headrace-{broker_id}",
        settings={**_SETTINGS, "broker.id": broker_id, "zookeeper.connect": zookeeper},
        host=network.address(host),
        port=_PORT,
        launcher=network.launcher(host),
    )


def _kafka(base: Path, zookeeper: str, broker_id: int, network: Network) -> WithZooKeeper:
    host = _host(broker_id)
    kafka = WithZooKeeper(
        base / f"kafka-{broker_id}", zookeeper, {name: str(value) for name, value in _SETTINGS.items()}
    )
    kafka.bootstrap = f"{network.address(host)}:{_PORT}"
    kafka.settings |= {"broker.id": str(broker_id), "listeners": f"PLAINTEXT://{kafka.bootstrap}"}
    kafka._java = Java(zookeeper_jars(), kafka.directory / "kafka.log", launcher=network.launcher(host))
    return kafka
