"""Plots: scripts that lead a cluster into the rare situations in which only one rule prevents harm.

A plot looks at the cluster, so that it hits the controller, a leader or a follower. It gives up if the cluster is not
in the state that it needs.
"""

import asyncio
from collections.abc import Callable, Sequence
from random import Random
from typing import Final, Protocol

from headrace.cluster.image import NO_LEADER, LeaderState
from headrace.types import TopicPartition
from tests.simulation.cluster import zookeeper
from tests.simulation.cluster.admin import Admin
from tests.simulation.cluster.broker import SESSION_TIMEOUT_S, Broker, host_of
from tests.simulation.cluster.history import OTHERS, History
from tests.simulation.cluster.store import Store

_EXPIRED_S: Final = SESSION_TIMEOUT_S + 0.5
"""Time until a dead broker's session has expired."""
_SHRUNK_S: Final = 2.6
"""Time until a follower that is cut off has left the ISR."""


class Stage(Protocol):
    """The part of the world that plots use."""

    history: History
    store: Store
    admin: Admin
    brokers: dict[int, Broker]
    names: list[TopicPartition]

    @property
    def controller(self) -> Broker | None: ...
    def do(self, kind: str, *arguments: object) -> None: ...
    def cut(self, duration: float, routes: set[tuple[str, str]]) -> None: ...
    def outvote(self, controller: Broker, duration: float) -> None: ...
    async def until(self, is_true: Callable[[], bool], timeout_s: float = 3.0) -> bool: ...


def _between(one: int, others: Sequence[int]) -> set[tuple[str, str]]:
    """Return the routes between a broker and others, in both directions."""
    here = host_of(one)
    return {route for other in others for route in ((here, host_of(other)), (host_of(other), here))}


def _state(stage: Stage, name: TopicPartition) -> LeaderState | None:
    """Return the state of a partition with a leader."""
    state = stage.store.state(name)
    return None if state is None or state.leader == NO_LEADER else state


def _isr(stage: Stage, name: TopicPartition) -> tuple[int, ...]:
    state = stage.store.state(name)
    return () if state is None else state.isr


def _replicas(stage: Stage, name: TopicPartition) -> tuple[int, ...]:
    key = stage.store.key_of(name)
    return () if key is None else stage.store.assignments[key].replicas


def _is_reassigned(stage: Stage, name: TopicPartition, target: Sequence[int]) -> bool:
    """Return True if the target of a reassignment in progress is in sync."""
    key = stage.store.key_of(name)
    return key is not None and stage.store.assignments[key].is_moving and set(target) <= set(_isr(stage, name))


async def isr_dies(stage: Stage, chance: Random) -> None:
    """A follower lags and leaves the ISR. The others die, and return without high watermarks."""
    name, controller = chance.choice(stage.names), stage.controller
    state = _state(stage, name)
    if state is None or controller is None:
        return
    laggard = chance.choice([broker for broker in state.isr if broker not in (state.leader, controller.id)] or [0])
    others = [broker for broker in stage.history.brokers if broker != laggard]
    if not laggard:
        return
    stage.cut(_SHRUNK_S, _between(laggard, others))
    await asyncio.sleep(_SHRUNK_S - 0.05)
    state = _state(stage, name)
    if state is None or laggard in state.isr:
        return
    for broker in state.isr:
        stage.do("crash", broker, 5.0 if broker == state.leader else 0.3, True)


async def isr_moves_away(stage: Stage, _: Random) -> None:
    """The ISR shrinks to a replica that a reassignment has added, and the reassignment is cancelled."""
    name = stage.names[0]
    replicas = _replicas(stage, name)
    added = next((broker for broker in stage.history.brokers if broker not in replicas), None)
    if added is None:
        return
    missing, *others = replicas
    stage.do("crash", missing, 8.0, False)
    await asyncio.sleep(_EXPIRED_S)
    await stage.admin.reassign(name, (added, missing))
    if await stage.until(lambda: added in _isr(stage, name)):
        for broker in others:
            stage.do("crash", broker, 4.0, False)
        await stage.until(lambda: _isr(stage, name) == (added,))
        await stage.admin.reassign(name, None)


async def reassignment_is_interrupted(stage: Stage, chance: Random) -> None:
    """A controller is deposed just after the target of a reassignment has joined the ISR."""
    name = chance.choice(stage.names)
    replicas = _replicas(stage, name)
    added = [broker for broker in stage.history.brokers if broker not in replicas]
    if not replicas:
        return
    target = (*added, *replicas[1:]) if added else replicas[1:]
    moving = asyncio.ensure_future(stage.admin.reassign(name, target))
    if await stage.until(lambda: _is_reassigned(stage, name, target)) and stage.controller is not None:
        stage.outvote(stage.controller, 0.9)
    await moving


async def deposed_controller_writes(stage: Stage, chance: Random) -> None:
    """A controller that does not know that it was deposed moves a partition."""
    name, controller = chance.choice(stage.names), stage.controller
    replicas = _replicas(stage, name)
    if controller is None or len(replicas) < 3:
        return
    stage.outvote(controller, 0.9)
    if await stage.until(lambda: stage.store.controller not in (None, controller.id), 0.5):
        await asyncio.sleep(chance.uniform(0.0, 0.2))
        await stage.admin.reassign(name, replicas[1:], controller.id)


async def commands_arrive_late(stage: Stage, chance: Random) -> None:
    """A broker gets commands of a controller after those of the next one."""
    name, controller = chance.choice(stage.names), stage.controller
    replicas = _replicas(stage, name)
    if controller is None or len(replicas) < 3:
        return
    broker = chance.choice([broker for broker in replicas if broker != controller.id])
    stage.cut(0.6, {(host_of(controller.id), host_of(broker))})
    moving = asyncio.ensure_future(stage.admin.reassign(name, (*replicas[1:], replicas[0])))
    await asyncio.sleep(0.1)
    stage.outvote(controller, 0.9)
    await moving


async def stopping_follower_fetches(stage: Stage, chance: Random) -> None:
    """A follower that is stopping does not hear from the controller, and keeps fetching."""
    controller = stage.controller
    if controller is None:
        return
    found = [
        (name, broker)
        for name in stage.names
        if (state := _state(stage, name)) is not None and state.leader != controller.id
        for broker in state.isr
        if broker not in (state.leader, controller.id)
    ]
    if found:
        name, follower = chance.choice(found)
        stage.do("stop", follower, 1.0)
        if await stage.until(lambda: follower not in _isr(stage, name)):
            stage.cut(1.0, {(host_of(controller.id), host_of(follower))})


async def returning_follower_dies(stage: Stage, chance: Random) -> None:
    """A follower catches up and dies before its leader, which is cut off from the controller, can add it to the ISR."""
    controller = stage.controller
    if controller is None:
        return
    found = [
        (name, state.leader, broker)
        for name in stage.names
        if (state := _state(stage, name)) is not None and state.leader != controller.id
        for broker in state.isr
        if broker not in (state.leader, controller.id)
    ]
    if not found:
        return
    name, leader, follower = chance.choice(found)
    stage.cut(_SHRUNK_S, _between(follower, [broker for broker in stage.history.brokers if broker != follower]))
    if await stage.until(lambda: follower not in _isr(stage, name)):
        await asyncio.sleep(chance.uniform(0.05, 0.3))  # until the leader has the answer
        stage.cut(1.0 + SESSION_TIMEOUT_S, _between(leader, [controller.id]))
        await asyncio.sleep(chance.uniform(0.7, 1.0))
        stage.do("crash", follower, 2 * _EXPIRED_S, False)


async def deletion_is_not_answered(stage: Stage, chance: Random) -> None:
    """A broker dies while it should delete a replica."""
    topic = OTHERS[0]
    if not await stage.until(lambda: topic in stage.store.topic_ids):
        return
    controller = stage.controller
    replicas = {broker for key, value in stage.store.assignments.items() if key.topic == topic for broker in value[0]}
    if controller is None or not replicas - {controller.id}:
        return
    broker = chance.choice(sorted(replicas - {controller.id}))
    stage.cut(1.0, _between(broker, [controller.id]))
    deleting = asyncio.ensure_future(stage.admin.delete_topic(topic))
    await asyncio.sleep(chance.uniform(0.3, 0.8))
    stage.do("crash", broker, 0.5, False)
    await deleting


async def leader_returns(stage: Stage, chance: Random) -> None:
    """A leader with records that its followers lack is replaced, and soon leads again."""
    name = chance.choice(stage.names)
    state = _state(stage, name)
    if state is None:
        return
    leader = state.leader
    routes = _between(leader, [broker for broker in stage.history.brokers if broker != leader])
    here = host_of(leader)
    stage.cut(_EXPIRED_S, routes | {(here, zookeeper.HOST), (zookeeper.HOST, here)})
    await asyncio.sleep(_EXPIRED_S)
    if await stage.until(lambda: leader in _isr(stage, name)):
        stage.do("elect", False)


async def leader_is_moved_without_session(stage: Stage, chance: Random) -> None:
    """A leader loses its session, and its replica is moved to other brokers before it registers again."""
    name = chance.choice(stage.names)
    state = _state(stage, name)
    if state is None:
        return
    leader, here = state.leader, host_of(state.leader)
    stage.cut(2 * _EXPIRED_S, {(here, zookeeper.HOST), (zookeeper.HOST, here)})
    if await stage.until(lambda: leader not in _isr(stage, name)):
        await stage.admin.reassign(name, [broker for broker in _replicas(stage, name) if broker != leader])


async def broker_restarts_unnoticed(stage: Stage, chance: Random) -> None:
    """The controller hears of a broker's death and of its restart at the same time."""
    controller = stage.controller
    if controller is None:
        return
    stage.do(
        "crash", chance.choice([broker for broker in stage.history.brokers if broker != controller.id]), 0.1, False
    )
    await asyncio.sleep(SESSION_TIMEOUT_S * 0.6)
    stage.cut(0.9, {(zookeeper.HOST, host_of(controller.id))})
