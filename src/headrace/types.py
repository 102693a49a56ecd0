"""Types shared by every room.

Knows nothing of any other module.
"""

from typing import Any, NamedTuple, TypeAlias

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
