"""Return the current leader in Produce and Fetch replies, so that clients need not request metadata (KIP-951)."""

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeAlias

from headrace.cluster.metadata_cache import MetadataCache
from headrace.wire.encoder import put_count, put_string
from headrace.wire.varint import put_unsigned_varint

_TAG = struct.Struct(">BBiiB")
"""Number and size of the tagged field, leader id, leader epoch, no nested tags."""
_TAG_SIZE: Final = 9
_INT32 = struct.Struct(">i")


class CurrentLeader(NamedTuple):
    """The leader of a partition, and its address for the client."""

    broker_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


LeaderOf: TypeAlias = Callable[[str, int, str], CurrentLeader | None]
"""Takes a topic, a partition and a listener's name. Returns the leader with its address there; None if unknown."""


def leader_in(cache: MetadataCache) -> LeaderOf:
    """Return a function that looks up leaders in the metadata cache."""

    def leader_of(topic: str, partition: int, listener: str) -> CurrentLeader | None:
        image = cache.image
        found = image.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        state = found.partitions[partition]
        broker = image.brokers.get(state.leader)
        endpoint = None if broker is None else broker.endpoint(listener)
        if broker is None or endpoint is None:
            return None
        return CurrentLeader(broker.id, state.leader_epoch, endpoint.host, endpoint.port, broker.rack)

    return leader_of


def put_leader(out: bytearray, leader: CurrentLeader, tag: int) -> None:
    """Append a partition's CurrentLeader, the tagged field with number `tag`."""
    out += _TAG.pack(tag, _TAG_SIZE, leader.broker_id, leader.leader_epoch, 0)


def put_endpoints(out: bytearray, leaders: Iterable[CurrentLeader]) -> None:
    """Append the tagged fields at the end of a reply: NodeEndpoints with the leaders' addresses, or none."""
    nodes = {leader.broker_id: leader for leader in leaders}
    if not nodes:
        out.append(0)
        return
    content = bytearray()
    put_count(content, len(nodes), flexible=True)
    for leader in nodes.values():
        content += _INT32.pack(leader.broker_id)
        put_string(content, leader.host, flexible=True)
        content += _INT32.pack(leader.port)
        if leader.rack is None:
            content.append(0)
        else:
            put_string(content, leader.rack, flexible=True)
        content.append(0)
    out += b"\x01\x00"  # one tagged field with number 0
    put_unsigned_varint(out, len(content))
    out += content
