"""Types shared by all packages. Imports no other module."""

from typing import Any, NamedTuple, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes that can be sliced and written without a copy."""

Request: TypeAlias = Any
"""A decoded request: the schema class of its version, which only the wire package names."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


new_tuple = tuple.__new__
"""`new_tuple(SomeNamedTuple, values)` skips the class's constructor, which is several times slower: for hot paths."""
