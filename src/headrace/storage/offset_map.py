"""Which record of each key is the newest one in the part of a log that is being compacted, in bounded memory.

Keys are kept as fifteen bytes: themselves where they are shorter, else their BLAKE2b digest. A digest of 120 bits makes
a mistake about as often as a disk does, and with one byte less than MD5's sixteen the object fits into 48 bytes.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

from headrace.wire.record_spans import RecordSpan

BYTES_PER_KEY: Final = 176
"""Measured: 115 to 140 bytes an entry (two objects and a slot of the dict), 170 while the dict grows."""
_DIGEST_SIZE: Final = 15

LIVE: Final = 0
"""The record is the newest of its key and has a value; or there is no such record."""
SUPERSEDED: Final = 1
"""A newer record has the same key, or the record has no key."""
TOMBSTONE: Final = 2
"""The record is the newest of its key and has no value."""


class OffsetMap:
    """The newest offset of each key from `first_offset` to `latest_offset`, and the fate of every offset in between.

    Takes `BYTES_PER_KEY` a key and one byte an offset: ask `has_room` before `add`. `fates` ends with the last batch
    that was added.
    """

    __slots__ = ("_budget", "_offsets", "fates", "first_offset", "latest_offset")

    def __init__(self, first_offset: int, *, max_bytes: float) -> None:
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self.fates = bytearray()
        self._offsets: dict[bytes, int] = {}
        self._budget = max_bytes

    def __len__(self) -> int:
        return len(self._offsets)

    def has_room(self, records: int, last_offset: int) -> bool:
        """Whether a batch of `records` records up to `last_offset` fits, even if every key in it is new."""
        needed = (len(self._offsets) + records) * BYTES_PER_KEY + last_offset - self.first_offset
        return needed <= self._budget

    def add(self, spans: Sequence[RecordSpan], last_offset: int) -> None:
        """Take a batch that ends at `last_offset` into account."""
        self.skip_to(last_offset)
        self.fates += bytes(last_offset + 1 - self.first_offset - len(self.fates))
        offsets, fates, first = self._offsets, self.fates, self.first_offset
        for offset, key, has_value, _, _, _ in spans:
            if offset < first:
                continue
            if key is None:
                fates[offset - first] = SUPERSEDED
                continue
            if len(key) >= _DIGEST_SIZE:
                key = blake2b(key, digest_size=_DIGEST_SIZE).digest()
            older = offsets.get(key)
            if older is not None:
                fates[older - first] = SUPERSEDED
            offsets[key] = offset
            if not has_value:
                fates[offset - first] = TOMBSTONE

    def skip_to(self, last_offset: int) -> None:
        """There is nothing more to know up to `last_offset`."""
        self.latest_offset = max(self.latest_offset, last_offset)

    def supersedes(self, key: bytes) -> bool:
        """Whether a record of `key` from before `first_offset` has a newer one."""
        if len(key) >= _DIGEST_SIZE:
            key = blake2b(key, digest_size=_DIGEST_SIZE).digest()
        return key in self._offsets
