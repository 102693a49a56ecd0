"""A cache of encoded replies and parts of replies, limited in bytes."""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_ENTRY_BYTES: Final = 300
"""Overhead of an entry in the cache."""
V = TypeVar("V")


class AnswerCache(Generic[V]):
    """Keeps values by key, with the source that they were made from. Evicts the oldest beyond `limit` bytes."""

    __slots__ = ("_entries", "_limit", "size")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: dict[Hashable, tuple[object, V, int]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, source: object) -> V | None:
        """Return the value if it was made from `source`, an immutable object that every change replaces; else None."""
        found = self._entries.get(key)
        return found[1] if found is not None and found[0] is source else None

    def put(self, key: Hashable, source: object, value: V, size: int) -> None:
        """Store a value of `size` bytes, unless it is larger than half the limit."""
        size += _ENTRY_BYTES
        if size > self._limit // 2:
            return
        before = self._entries.pop(key, None)
        if before is not None:
            self.size -= before[2]
        while self._entries and self.size + size > self._limit:
            self.size -= self._entries.pop(next(iter(self._entries)))[2]
        self._entries[key] = (source, value, size)
        self.size += size

    def clear(self) -> None:
        self._entries.clear()
        self.size = 0
