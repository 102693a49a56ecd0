"""Reads the metadata tree into an image, and makes the nodes that every tree has."""

from __future__ import annotations

import logging
import uuid

from headrace.cluster import znodes
from headrace.cluster.image import (
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    NO_LEADER,
    TOPIC_CONFIG,
    ConfigResource,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from headrace.cluster.store import Create, MetadataStore, NoNode

log = logging.getLogger(__name__)

_CONFIG_KINDS = (TOPIC_CONFIG, BROKER_CONFIG, GROUP_CONFIG, CLIENT_METRICS_CONFIG)


async def create_persistent_nodes(store: MetadataStore) -> None:
    """Create those of the tree's fixed nodes that are missing."""
    missing = [Create(path) for path in znodes.PERSISTENT if await store.exists(path) is None]
    if missing:
        await store.multi(missing)


async def load_image(store: MetadataStore) -> MetadataImage:
    """Live brokers, topics, partitions and settings as the tree has them."""
    brokers = [
        znodes.decode_broker(int(name), (await store.get(znodes.broker_path(int(name)))).data)
        for name in await store.children(znodes.BROKER_IDS)
    ]
    topics = [await _load_topic(store, name) for name in await store.children(znodes.TOPICS)]
    configs = {}
    for kind in _CONFIG_KINDS:
        for name in await store.children(f"{znodes.CONFIG}/{kind}"):
            values = znodes.decode_config((await store.get(f"{znodes.CONFIG}/{kind}/{name}")).data)
            configs[ConfigResource(kind, znodes.desanitize(name))] = values
    return MetadataImage().with_brokers(brokers).with_topics(topics).with_configs(configs)


async def _load_topic(store: MetadataStore, name: str) -> TopicImage:
    node = await store.get(znodes.topic_path(name))
    topic_id, replicas = znodes.decode_topic(node.data)
    if topic_id is None:
        # Written by something older than topic ids (KIP-516): give it one, as Kafka's controller does.
        topic_id = uuid.uuid4()
        await store.set(znodes.topic_path(name), znodes.encode_topic(topic_id, replicas), node.version)
    partitions = []
    for partition, brokers in replicas.items():
        try:
            state = await store.get(znodes.state_path(name, partition))
        except NoNode:
            log.warning("Partition %s-%d has no state yet and stays without a leader", name, partition)
            partitions.append(PartitionImage(NO_LEADER, 0, brokers, brokers))
        else:
            partitions.append(znodes.decode_state(state.data, state.version, brokers))
    return TopicImage(name, topic_id, tuple(partitions))
