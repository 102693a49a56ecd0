"""A candidate on a tree in memory, and brokers that answer every order without doing anything."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from headrace.cluster import znodes
from headrace.cluster.image import Assignment, LeaderState
from headrace.cluster.membership.founding import found_cluster
from headrace.cluster.offices import channels
from headrace.cluster.offices.candidate import Candidate
from headrace.cluster.offices.orders import REPLIES
from headrace.cluster.offices.term import TermSettings
from headrace.cluster.store import Create, Set
from headrace.errors import ErrorCode
from headrace.wire.controls.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicError,
)
from headrace.wire.controls.stop_replica import StopReplicaPartitionError, StopReplicaRequest
from tests.unit.cluster.clusters import NOW_MS, broker
from tests.unit.cluster.membership.watched_store import WatchedMemory

CONTROLLER = 1


class OfficeWorld:
    """The tree, the candidate of broker 1, and the orders that brokers have got."""

    def __init__(self, tree: WatchedMemory) -> None:
        self.tree = tree
        self.orders: list[tuple[int, Any]] = []
        """Ports of brokers (9000 + id) with requests."""
        self.errors: dict[int, ErrorCode] = {}
        """Errors with which brokers answer LeaderAndIsr, by port."""
        settings = TermSettings("PLAINTEXT", 1.0, lambda _: False, deletes_topics=True, balance=lambda: None)
        self.candidate = Candidate(tree, CONTROLLER, settings, now_ms=lambda: NOW_MS, loop=asyncio.get_running_loop())

    def link(self, endpoint: Callable[[], tuple[str, int]], **_: object) -> "_Link":
        return _Link(self, endpoint)

    async def register(self, *ids: int) -> None:
        for broker_id in ids:
            path, data = znodes.broker_path(broker_id), znodes.encode_broker(broker(broker_id), NOW_MS)
            await self.tree.multi([Create(path, ephemeral=True), Set(path, data)])

    async def create_topic(self, topic: str, *replicas: tuple[int, ...]) -> uuid.UUID:
        topic_id = uuid.uuid4()
        assignments = {index: Assignment(brokers) for index, brokers in enumerate(replicas)}
        await self.tree.create(znodes.topic_path(topic), znodes.encode_assignments(topic_id, assignments))
        await self.rest()
        return topic_id

    async def state(self, topic: str, partition: int) -> LeaderState:
        node = await self.tree.get(znodes.state_path(topic, partition))
        return znodes.decode_leader_state(node.data, node.stat.version, node.stat.mzxid)

    async def rest(self) -> None:
        """Wait until nothing happens any more."""
        quiet = 0
        while quiet < 20:
            await asyncio.sleep(0)
            term = self.candidate.term
            busy = term is not None and (len(term.queue) or any(term.channels.waiting.values()))
            quiet = 0 if busy else quiet + 1

    async def stand(self) -> None:
        self.candidate.stand()
        await self.rest()

    def answer(self, host: str, message: Any) -> Any:
        self.orders.append((int(host.removeprefix("host")), message))
        fields: dict[str, Any] = {"error_code": ErrorCode.none}
        if isinstance(message, LeaderAndIsrRequest):
            error = self.errors.get(self.orders[-1][0], ErrorCode.none)
            fields["topics"] = tuple(
                LeaderAndIsrTopicError(
                    topic_id=topic.topic_id,
                    partition_errors=tuple(
                        LeaderAndIsrPartitionError(partition_index=item.partition_index, error_code=error)
                        for item in topic.partition_states
                    ),
                )
                for topic in message.topic_states
            )
        elif isinstance(message, StopReplicaRequest):
            fields["partition_errors"] = tuple(
                StopReplicaPartitionError(
                    topic_name=topic.topic_name, partition_index=item.partition_index, error_code=ErrorCode.none
                )
                for topic in message.topic_states
                for item in topic.partition_states
            )
        return REPLIES[type(message)](**fields)

    def sent(self, kind: type, broker_id: int) -> list[Any]:
        return [message for to, message in self.orders if to == broker_id and isinstance(message, kind)]


class _Link:
    def __init__(self, world: OfficeWorld, endpoint: Callable[[], tuple[str, int]]) -> None:
        self._world = world
        self._endpoint = endpoint

    async def call(self, message: Any, _version: int, _reply_type: type) -> Any:
        return self._world.answer(self._endpoint()[0], message)

    def close(self) -> None:
        """Nothing is open."""


async def office(tree: WatchedMemory, monkeypatch: pytest.MonkeyPatch) -> OfficeWorld:
    """Return a world with brokers 1 to 3, whose broker 1 does not stand yet."""
    await found_cluster(tree)
    world = OfficeWorld(tree)
    monkeypatch.setattr(channels, "Link", world.link)
    await world.register(1, 2, 3)
    return world
