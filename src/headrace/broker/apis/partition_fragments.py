"""Encode the partitions of a topic for Metadata and DescribeTopicPartitions, faster than the general encoder.

Most partitions of a topic differ only in their index, so the bytes around it are encoded once per state. A test
compares the result with the general encoder's for every version.
"""

import struct
from collections.abc import Collection, Sequence
from typing import NamedTuple

from headrace.cluster.image import NO_LEADER, PartitionImage
from headrace.errors import ErrorCode
from headrace.wire.encoder import EncodedItems, put_count

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


class Layout(NamedTuple):
    """The fields of a partition in one version of a reply."""

    is_flexible: bool
    has_epoch: bool
    has_offline: bool
    has_eligible: bool
    """True if the reply has the eligible leader replicas and the last known ones (KIP-966), which are always empty."""
    no_listener: ErrorCode
    """The error of a partition whose leader has no address on the client's listener."""


DESCRIBED = Layout(True, True, True, True, ErrorCode.listener_not_found)
"""The layout of DescribeTopicPartitions."""


def metadata_layout(version: int) -> Layout:
    return Layout(
        is_flexible=version >= 9,
        has_epoch=version >= 7,
        has_offline=version >= 5,
        has_eligible=False,
        no_listener=ErrorCode.listener_not_found if version >= 6 else ErrorCode.leader_not_available,
    )


class BrokersSeen(NamedTuple):
    """The brokers as clients of one listener see them. Hashable, because it is part of a cache key."""

    alive: frozenset[int]
    reachable: frozenset[int]
    """Brokers with an address on the client's listener."""


def encode_partitions(
    partitions: Sequence[PartitionImage], layout: Layout, brokers: BrokersSeen, first: int = 0
) -> EncodedItems:
    """Encode `partitions`, which are numbered from `first` on, as items of an array."""
    out = bytearray()
    pack = _INT32.pack
    ends: dict[PartitionImage, tuple[bytes, bytes]] = {}
    for index, partition in enumerate(partitions, first):
        found = ends.get(partition)
        if found is None:
            found = ends[partition] = _ends(partition, layout, brokers)
        out += found[0]
        out += pack(index)
        out += found[1]
    return EncodedItems(len(partitions), bytes(out))


def _ends(partition: PartitionImage, layout: Layout, brokers: BrokersSeen) -> tuple[bytes, bytes]:
    """Return the bytes before and after a partition's index."""
    error = ErrorCode.none
    if partition.leader not in brokers.alive:
        error = ErrorCode.leader_not_available
    elif partition.leader not in brokers.reachable:
        error = layout.no_listener
    out = bytearray(_INT32.pack(NO_LEADER if error else partition.leader))
    if layout.has_epoch:
        out += _INT32.pack(partition.leader_epoch)
    _put_ids(out, partition.replicas, layout)
    _put_ids(out, partition.isr, layout)
    if layout.has_eligible:
        _put_ids(out, (), layout)
        _put_ids(out, (), layout)
    if layout.has_offline:
        _put_ids(out, _offline(partition, brokers), layout)
    if layout.is_flexible:
        out.append(0)
    return _INT16.pack(error), bytes(out)


def _offline(partition: PartitionImage, brokers: BrokersSeen) -> list[int]:
    return [replica for replica in partition.replicas if replica not in brokers.alive or replica in partition.offline]


def _put_ids(out: bytearray, ids: Collection[int], layout: Layout) -> None:
    put_count(out, len(ids), flexible=layout.is_flexible)
    for item in ids:
        out += _INT32.pack(item)
