"""Change the controller of two Kafka and two Headrace brokers from one kind to the other, during administration.

Controllers are killed, stopped, paused beyond their sessions, or deposed while they are stopped in the middle of their
work. After every few failovers the administrator rests: then nothing may be in progress, offline or out of sync, and
the replicas have to be where the administrator has put them. Logs of moved replicas may be left: like Kafka's,
Headrace's controller completes a move without waiting until the old replica's broker has deleted the log.

A controller of Kafka 3.9 that is deposed while it collects requests may keep them. In its next term it then fails to
send any, until it is restarted (`_Cured`).
"""

import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from kazoo.exceptions import NoNodeError

from tests.cluster.conftest import metadata
from tests.cluster.proofs.administrator import Administrator
from tests.cluster.proofs.kills import REPLICATED, TOPIC, rotated, verify
from tests.cluster.proofs.load import Load
from tests.cluster.proofs.rig import Rig, Say, State
from tests.support.waiting import wait_for

_KAFKAS: Final = (1, 2)
_HEADRACES: Final = (4, 5)
_PARTITIONS: Final = 4
_SETTLE_S: Final = 120.0
_NOTICE_S: Final = 0.5
_KEPT_REQUESTS: Final = "state change requests batch is not empty while creating a new one"
_LOG_DIRECTORY: Final = re.compile(r"(.+)-(\d+)")
_SETTINGS: Final = {**REPLICATED, "log.segment.delete.delay.ms": "0", "auto.create.topics.enable": "false"}


class Way(Enum):
    """How a controller loses its office."""

    DEPOSED = "deposed while stopped"
    """The node is deleted while the controller is stopped: it wakes up with work to do, and without an office."""
    REMOVED = "node deleted"
    KILLED = "killed"
    STOPPED = "stopped cleanly"
    PAUSED = "paused beyond its session"


class Plan(NamedTuple):
    failovers: int
    seed: int
    rate: float = 20.0
    between: int = 5
    """The number of failovers until the administrator rests."""


def run(plan: Plan, base: Path, say: Say) -> dict[str, Any]:
    """Return the figures. Raises AssertionError if something is left, offline, misplaced, lost or duplicated."""
    chance = random.Random(plan.seed)
    with Rig(base, kafkas=_KAFKAS, headraces=_HEADRACES, settings=_SETTINGS) as rig:
        brokers = sorted(rig.brokers)
        rig.create(TOPIC, [rotated(brokers, index)[:3] for index in range(_PARTITIONS)], min_insync_replicas=2)
        load = Load(rig.bootstrap, TOPIC, _PARTITIONS, transactional=1, rate=plan.rate, seed=plan.seed)
        administrator = Administrator(rig, plan.seed, TOPIC)
        ways: Counter[Way] = Counter()
        stops = 0
        cured = _Cured(rig)
        epoch = _epoch(rig)
        with load:
            administrator.start()
            try:
                administrator.resume()
                for number in range(plan.failovers):
                    administrator.progress(3)
                    time.sleep(chance.uniform(0, 1))
                    way = chance.choice(list(Way))
                    ways[way] += 1
                    before = rig.wait_for_controller()
                    other = _stop_another(rig, before, chance) if chance.random() < 0.3 else None
                    stops += other is not None
                    _fail_over(rig, before, way)
                    after = rig.wait_for_controller()
                    rig.restart(*(broker_id for broker_id, broker in rig.brokers.items() if not broker.running))
                    say(
                        f"{number + 1}/{plan.failovers}: {_name(rig, before)} {way.value}, {_name(rig, after)} is the "
                        f"controller{f'; {_name(rig, other)} was stopped' if other else ''}; "
                        f"{administrator.operations.total()} operations, {load.acknowledged} records"
                    )
                    cured.restart()
                    load.check()
                    if (number + 1) % plan.between == 0 or number == plan.failovers - 1:
                        administrator.rest()
                        seconds = _settle(rig, administrator, cured)
                        say(f"settled after {seconds:.0f} s with {len(rig.topics())} topics")
                        administrator.resume()
            finally:
                administrator.end()
            load.progress()
        administrator.rest()
        _settle(rig, administrator, cured)
        epochs = _epoch(rig) - epoch
        left = list(_left(rig))
        figures = verify(rig, TOPIC, _PARTITIONS, load)
        ended = rig.ended_themselves()
    return {
        "seed": plan.seed,
        "failovers between Kafka and Headrace": plan.failovers,
        **{
            f"of them, controllers {way.value}": count
            for way, count in sorted(ways.items(), key=lambda item: item[0].value)
        },
        "all elections of controllers": epochs,
        "clean stops of other brokers": stops,
        "restarts of Kafka brokers that kept requests": cured.restarts,
        **{f"operations: {name}": count for name, count in sorted(administrator.operations.items())},
        "logs left by moves that failovers interrupted": len(left),
        "operations refused or not answered": administrator.unconfirmed,
        "brokers that ended because the machine was too busy": ended,
        **figures,
    }


class _Cured:
    """Restarts brokers of Kafka that cannot send requests, because they have kept those of an earlier term."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._seen: Counter[int] = Counter()
        self.restarts = 0

    def restart(self) -> None:
        for broker_id, broker in self._rig.brokers.items():
            failures = broker.log().count(_KEPT_REQUESTS)
            if failures > self._seen[broker_id]:
                self._seen[broker_id] = failures
                self.restarts += 1
                broker.sigkill()
                self._rig.restart(broker_id)


def _name(rig: Rig, broker_id: int) -> str:
    return f"{'Headrace' if rig.is_headrace(broker_id) else 'Kafka'} {broker_id}"


def _epoch(rig: Rig) -> int:
    return int(rig.zookeeper.get("/controller_epoch")[0])


def _stop_another(rig: Rig, controller: int, chance: random.Random) -> int:
    """Stop a broker that is not the controller, and return it."""
    other = chance.choice([broker for broker in rig.brokers if broker != controller])
    rig.brokers[other].sigterm()
    return other


def _fail_over(rig: Rig, controller: int, way: Way) -> None:
    """End the controller's office, and wait until a broker of the other kind is the controller."""
    wanted = not rig.is_headrace(controller)
    epoch = _epoch(rig)
    broker = rig.brokers[controller]
    if way is Way.REMOVED:
        _remove_node(rig)
    elif way is Way.KILLED:
        broker.sigkill()
    elif way is Way.STOPPED:
        broker.sigterm()
    elif way is Way.PAUSED:
        broker.pause()
    try:
        if way is not Way.DEPOSED:
            wait_for(lambda: _epoch(rig) > epoch and rig.controller() is not None, "another controller")
    finally:
        if way is Way.PAUSED:
            broker.resume()
    while True:
        now = rig.wait_for_controller()
        if rig.is_headrace(now) == wanted:
            return
        _depose(rig, wanted)


def _depose(rig: Rig, wanted: bool) -> None:
    """Delete the controller's node while all brokers of its kind are stopped."""
    with _frozen(rig, not wanted):
        # Kafka elects no controller if the node is deleted before it has read that the node was created.
        time.sleep(_NOTICE_S)
        epoch = _epoch(rig)
        _remove_node(rig)
        wait_for(lambda: _epoch(rig) > epoch and rig.controller() is not None, "a controller of the other kind")


@contextlib.contextmanager
def _frozen(rig: Rig, is_headrace: bool) -> Iterator[None]:
    """Pause all running brokers of a kind."""
    brokers = [
        broker
        for broker_id, broker in rig.brokers.items()
        if broker.running and rig.is_headrace(broker_id) == is_headrace
    ]
    for broker in brokers:
        broker.pause()
    try:
        yield
    finally:
        for broker in brokers:
            broker.resume()


def _remove_node(rig: Rig) -> None:
    with contextlib.suppress(NoNodeError):
        rig.zookeeper.delete("/controller")


def _settle(rig: Rig, administrator: Administrator, cured: _Cured) -> float:
    """Wait until nothing is wrong, and return the seconds. Raises AssertionError."""
    started = time.monotonic()
    deadline = started + _SETTLE_S
    while True:
        cured.restart()
        try:
            wrong = [*_wrong(rig), *_left(rig, but=administrator.moved)]
        except NoNodeError as error:
            wrong = [f"a topic was deleted meanwhile: {error}"]
        if not wrong:
            break
        assert time.monotonic() < deadline, f"{len(wrong)} wrong after {_SETTLE_S:g} s: " + "\n".join(wrong[:30])
        time.sleep(0.5)
    contradictions = administrator.contradictions()
    assert not contradictions, "\n".join(contradictions)
    return time.monotonic() - started


def _wrong(rig: Rig) -> Iterator[str]:
    """Yield what is in progress, offline, misplaced or out of sync."""
    for name in rig.zookeeper.get_children("/admin"):
        left = rig.zookeeper.get_children(f"/admin/{name}") if name == "delete_topics" else [""]
        yield from (f"/admin/{name}/{topic}" for topic in left)
    if rig.live_brokers() != set(rig.brokers):
        yield f"only brokers {rig.live_brokers()} live"
    topics = rig.topics()
    yield from (
        f"/config/topics/{name} is left" for name in set(rig.zookeeper.get_children("/config/topics")) - set(topics)
    )
    if rig.is_reassigning():
        yield "replicas are being added or removed"
    hosted: dict[int, set[str]] = {broker: set() for broker in rig.brokers}
    for topic in topics:
        states = rig.states(topic)
        for partition, replicas in rig.replicas(topic).items():
            for broker in replicas:
                hosted[broker].add(f"{topic}-{partition}")
            state = states.get(partition)
            if state is None or state.leader not in replicas or state.isr != set(replicas):
                yield f"{topic}-{partition} on {replicas}: {state}"
    for broker_id in rig.brokers:
        found = _directories(rig, broker_id)
        yield from (f"{_name(rig, broker_id)} has no {name}" for name in hosted[broker_id] - found)
        yield from _unlike_metadata(rig, broker_id, topics)


def _left(rig: Rig, *, but: Collection[str] = ()) -> Iterator[str]:
    """Yield the logs, `but` of some partitions, that brokers have without being replicas."""
    for broker_id in rig.brokers:
        hosted = {
            f"{topic}-{partition}"
            for topic in rig.topics()
            for partition, replicas in rig.replicas(topic).items()
            if broker_id in replicas
        }
        left = _directories(rig, broker_id) - hosted - set(but)
        yield from (f"{_name(rig, broker_id)} still has {name}" for name in left)


def _directories(rig: Rig, broker_id: int) -> set[str]:
    return {path.name for path in rig.brokers[broker_id].data.iterdir() if _LOG_DIRECTORY.fullmatch(path.name)}


def _unlike_metadata(rig: Rig, broker_id: int, topics: list[str]) -> Iterator[str]:
    """Yield partitions of which a broker's metadata says something else than ZooKeeper."""
    described = {
        (topic["name"], partition["partition_index"]): partition
        for topic in metadata(rig.brokers[broker_id].bootstrap, *topics)["topics"]
        for partition in topic["partitions"]
    }
    for topic in topics:
        states = rig.states(topic)
        for partition, replicas in rig.replicas(topic).items():
            seen = described.get((topic, partition))
            state = states.get(partition)
            if seen is None or state is None or not _is_like(seen, state, replicas):
                yield f"{_name(rig, broker_id)} describes {topic}-{partition} as {seen}"


def _is_like(seen: Mapping[str, Any], state: State, replicas: list[int]) -> bool:
    is_led = seen["leader_id"] == state.leader and seen["replica_nodes"] == replicas
    return is_led and set(seen["isr_nodes"]) == state.isr and not seen["offline_replicas"]
