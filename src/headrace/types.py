"""Nominal types shared by every room, so that a swapped offset and epoch does not type-check.

Knows nothing of any other module.
"""

from typing import Any, NamedTuple, NewType, TypeAlias

Offset = NewType("Offset", int)
"""Position of a record in its partition."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of the leadership under which a batch was written; -1 where unknown."""
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
TimestampMs = NewType("TimestampMs", int)
"""Milliseconds since the Unix epoch; -1 where unknown."""

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes that can be sliced and written without a copy."""

Request: TypeAlias = Any
"""A decoded request: the schema class of the request's own version, which only the wire room can name."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


new_tuple = tuple.__new__
"""`new_tuple(SomeNamedTuple, values)`: past the class's own constructor, which takes several times as long.

For hot paths alone."""
