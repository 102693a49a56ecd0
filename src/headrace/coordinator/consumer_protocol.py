"""The part of the consumer's embedded protocol that a coordinator reads: which topics a member subscribes to."""

import struct

CONSUMER_PROTOCOL_TYPE = "consumer"

_VERSION_AND_COUNT = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """Topics in a member's subscription, which begins the same way in every version; None if it cannot be read."""
    try:
        _, count = _VERSION_AND_COUNT.unpack_from(metadata)
        position = _VERSION_AND_COUNT.size
        topics = set()
        for _ in range(count):
            (size,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            if size < 0 or position + size > len(metadata):
                return None
            topics.add(metadata[position : position + size].decode())
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
