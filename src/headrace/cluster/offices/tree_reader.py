"""Read the controller's state from ZooKeeper.

Nodes that cannot be decoded are logged and left out: a single one must not leave the cluster without a controller.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from headrace.cluster import znodes
from headrace.cluster.controller.machine import ReadTopic
from headrace.cluster.image import BrokerImage, LeaderState
from headrace.cluster.loading import decoded
from headrace.cluster.membership.registration import WatchedStore
from headrace.cluster.store import MalformedNodeError, Node, NoNodeError, Operation, Set
from headrace.types import TopicPartition
from headrace.wire.ids import new_id

T = TypeVar("T")

log = logging.getLogger(__name__)


class TreeReader:
    """Reads nodes. A watch calls `changed` once, and is lost with the connection."""

    def __init__(self, store: WatchedStore) -> None:
        self._store = store

    async def brokers(self, changed: Callable[[], None]) -> list[BrokerImage]:
        """Return the registered brokers, and watch for new, stopped and changed ones."""
        names = await self._store.watched_children(znodes.BROKER_IDS, changed)
        ids = [int(name) for name in names if name.isdecimal()]
        nodes = await asyncio.gather(*(self._store.watched(znodes.broker_path(item), changed) for item in ids))
        found = [_broker(item, node) for item, node in zip(ids, nodes, strict=True) if node is not None]
        return [broker for broker in found if broker is not None]

    async def topic_names(self, changed: Callable[[], None]) -> list[str]:
        """Return the names of all topics, and watch for created and deleted ones."""
        return await self._store.watched_children(znodes.TOPICS, changed)

    async def topics(self, names: Iterable[str]) -> tuple[dict[str, ReadTopic], list[Operation]]:
        """Return topics, and the writes that assign ids to topics from before KIP-516."""
        topics: dict[str, ReadTopic] = {}
        writes: list[Operation] = []
        for name, node in await self._found([(name, znodes.topic_path(name)) for name in names]):
            path = znodes.topic_path(name)
            topic = _decoded_or_none(path, znodes.decode_assignments, node.data)
            if topic is None:
                continue
            topic_id, assignments = topic
            if topic_id is None:
                topic_id = new_id()
                writes.append(Set(path, znodes.encode_assignments(topic_id, assignments), node.stat.version))
            topics[name] = ReadTopic(topic_id, assignments)
        return topics, writes

    async def states(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderState | None]:
        """Return the states of partitions, None for malformed ones. Partitions without a state are left out."""
        paths = [znodes.state_path(*partition) for partition in partitions]
        states: dict[TopicPartition, LeaderState | None] = {}
        for partition, node in zip(partitions, await self._store.get_many(paths), strict=True):
            if node is not None:
                states[partition] = _decoded_or_none(znodes.state_path(*partition), _state_decoder(node), node.data)
        return states

    async def deletions(self, changed: Callable[[], None]) -> list[str]:
        return await self._store.watched_children(znodes.DELETIONS, changed)

    async def notifications(self, parent: str, changed: Callable[[], None]) -> list[tuple[str, Node]]:
        """Return the paths and nodes below `parent`, and watch for more."""
        names = await self._store.watched_children(parent, changed)
        return await self._found([(f"{parent}/{name}", f"{parent}/{name}") for name in names])

    async def node(self, path: str, changed: Callable[[], None]) -> Node | None:
        """Return a node, or None if it does not exist, and watch it."""
        return await self._store.watched(path, changed)

    async def below(self, path: str) -> list[str]:
        """Return the path of a node and of everything below it, deepest first; none if it does not exist."""
        try:
            names = await self._store.children(path)
        except NoNodeError:
            return []
        parts = await asyncio.gather(*(self.below(f"{path}/{name}") for name in names))
        return [*(node for part in parts for node in part), path]

    async def _found(self, wanted: Sequence[tuple[str, str]]) -> list[tuple[str, Node]]:
        """Return the keys and nodes of (key, path) pairs whose path exists."""
        nodes = await self._store.get_many([path for _, path in wanted])
        return [(key, node) for (key, _), node in zip(wanted, nodes, strict=True) if node is not None]


def _broker(broker_id: int, node: Node) -> BrokerImage | None:
    path = znodes.broker_path(broker_id)
    return _decoded_or_none(path, lambda data: znodes.decode_broker(broker_id, data, node.stat.czxid), node.data)


def _state_decoder(node: Node) -> Callable[[bytes], LeaderState]:
    return lambda data: znodes.decode_leader_state(data, node.stat.version, node.stat.mzxid)


def _decoded_or_none(path: str, decode: Callable[[bytes], T], data: bytes) -> T | None:
    try:
        return decoded(path, decode, data)
    except MalformedNodeError as error:
        log.error("The controller ignores the malformed node %s: correct or delete it (%r)", path, error.__cause__)
        return None
