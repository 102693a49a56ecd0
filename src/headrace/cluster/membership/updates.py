"""Convert UpdateMetadata, which contains single partitions, to changes of whole topics. Pure."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from headrace.cluster.commands import DURING_DELETION, UpdateMetadata
from headrace.cluster.image import NO_LEADER, BrokerImage, Endpoint, MetadataImage, PartitionImage, TopicImage
from headrace.slices import Steps

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Names of security protocols by number."""
UNASSIGNED: Final = PartitionImage(NO_LEADER, -1, (), ())
"""Placeholder for a partition that the controller has not announced, although it has announced higher numbers."""
_PARTITIONS_A_STEP: Final = 1000


def update_of(request: Any, image: MetadataImage) -> Steps[UpdateMetadata]:
    """Return the changes that an UpdateMetadata request of version 8 makes to `image`.

    If the topic id has changed, the topic was deleted and created again: its old partitions are dropped.
    """
    topics: dict[str, TopicImage] = {}
    deleted: dict[str, None] = {}
    count = 0
    for state in request.topic_states:
        name, topic_id = state.topic_name, state.topic_id or uuid.UUID(int=0)
        known = topics.get(name) or image.topics.get(name)
        if known is not None and known.topic_id != topic_id:
            deleted[name] = None
            known = None
        changes: dict[int, PartitionImage | None] = {}
        for partition in state.partition_states:
            gone = partition.leader == DURING_DELETION
            changes[partition.partition_index] = None if gone else _partition(partition)
            count += 1
            if count % _PARTITIONS_A_STEP == 0:
                yield
        partitions = _changed(() if known is None else known.partitions, changes)
        if partitions:
            topics[name] = TopicImage(name, topic_id, partitions)
        else:
            topics.pop(name, None)
            deleted[name] = None
    return UpdateMetadata(
        request.controller_id,
        request.controller_epoch,
        tuple(_broker(broker, image) for broker in request.live_brokers),
        tuple(topics.values()),
        tuple(deleted),
    )


def _changed(
    partitions: tuple[PartitionImage, ...], changes: Mapping[int, PartitionImage | None]
) -> tuple[PartitionImage, ...]:
    """Apply `changes`, where None removes a partition. Removed partitions at the end leave no placeholders."""
    merged: dict[int, PartitionImage] = dict(enumerate(partitions))
    for index, partition in changes.items():
        merged[index] = UNASSIGNED if partition is None else partition
    last = max((index for index, partition in merged.items() if partition is not UNASSIGNED), default=-1)
    return tuple(merged.get(index, UNASSIGNED) for index in range(last + 1))


def _partition(state: Any) -> PartitionImage:
    return PartitionImage(
        state.leader,
        state.leader_epoch,
        tuple(state.replicas),
        tuple(state.isr),
        state.zk_version,
        offline=tuple(state.offline_replicas),
    )


def _broker(broker: Any, image: MetadataImage) -> BrokerImage:
    endpoints = tuple(
        Endpoint(endpoint.listener, endpoint.host, endpoint.port, SECURITY_PROTOCOLS[endpoint.security_protocol])
        for endpoint in broker.endpoints
    )
    known = image.brokers.get(broker.id)
    return BrokerImage(broker.id, endpoints, broker.rack, -1 if known is None else known.epoch)
