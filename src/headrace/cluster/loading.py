"""Read the metadata tree into an image."""

import uuid
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from headrace.cluster import znodes
from headrace.cluster.image import (
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    NEVER_WRITTEN,
    NO_LEADER,
    TOPIC_CONFIG,
    ConfigResource,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from headrace.cluster.store import Create, MalformedNodeError, MetadataStore, Node, Operation
from headrace.wire.ids import new_id

T = TypeVar("T")

_CONFIG_KINDS = (TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG, CLIENT_METRICS_CONFIG)


def decoded(path: str, decode: Callable[[bytes], T], data: bytes) -> T:
    """Decode the data of the node at `path`. Raises MalformedNodeError."""
    try:
        return decode(data)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise MalformedNodeError(path, f"{type(error).__name__}: {error}") from error


async def missing_nodes(store: MetadataStore) -> list[Operation]:
    """Return the operations that create the nodes of `znodes.PERSISTENT` that do not exist yet."""
    nodes = await store.get_many(znodes.PERSISTENT)
    return [Create(path) for path, node in zip(znodes.PERSISTENT, nodes, strict=True) if node is None]


async def load_image(store: MetadataStore) -> MetadataImage:
    brokers = [
        decoded(
            znodes.broker_path(int(name)), partial(znodes.decode_broker, int(name), epoch=node.stat.czxid), node.data
        )
        for name, node in await _read_children(store, znodes.BROKER_IDS)
    ]
    configs = {
        ConfigResource(kind, znodes.desanitize(name)): decoded(
            f"{znodes.CONFIG}/{kind}/{name}", znodes.decode_config, node.data
        )
        for kind in _CONFIG_KINDS
        for name, node in await _read_children(store, f"{znodes.CONFIG}/{kind}")
    }
    topics = await _load_topics(store)
    return MetadataImage().with_brokers(brokers).with_topics(topics).with_configs(configs)


async def _read_children(store: MetadataStore, path: str) -> list[tuple[str, Node]]:
    names = await store.children(path)
    nodes = await store.get_many([f"{path}/{name}" for name in names])
    return [(name, node) for name, node in zip(names, nodes, strict=True) if node is not None]


async def _load_topics(store: MetadataStore) -> list[TopicImage]:
    assignments: list[tuple[str, uuid.UUID, dict[int, tuple[int, ...]]]] = []
    for name, node in await _read_children(store, znodes.TOPICS):
        topic_id, replicas = decoded(znodes.topic_path(name), znodes.decode_topic, node.data)
        if topic_id is None:
            # Written before topic ids existed (KIP-516): assign one, as Kafka's controller does.
            topic_id = new_id()
            await store.set(znodes.topic_path(name), znodes.encode_topic(topic_id, replicas), node.stat.version)
        assignments.append((name, topic_id, replicas))
    paths = [znodes.state_path(name, partition) for name, _, replicas in assignments for partition in replicas]
    states = dict(zip(paths, await store.get_many(paths), strict=True))
    return [
        TopicImage(
            name,
            topic_id,
            tuple(
                _partition(path, states[path], replicas[index])
                for index, path in ((index, znodes.state_path(name, index)) for index in sorted(replicas))
            ),
        )
        for name, topic_id, replicas in assignments
    ]


def _partition(path: str, state: Node | None, replicas: tuple[int, ...]) -> PartitionImage:
    if state is None:
        return PartitionImage(NO_LEADER, -1, replicas, replicas, NEVER_WRITTEN)
    stat = state.stat
    return decoded(path, lambda data: znodes.decode_state(data, stat.version, replicas, stat.mzxid), state.data)
