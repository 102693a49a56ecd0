"""Which record of each key is the newest one in the part of a log that is being compacted, in bounded memory.

A key is kept as it is up to 46 bytes, which spares the digest of most; a longer one as its BLAKE2b digest of 47 bytes.
An object of that size takes 80 bytes, and no key can be mistaken for a digest.
"""

from hashlib import blake2b
from typing import Final

from headrace.wire.batch import BatchHeader
from headrace.wire.record_spans import keys_of

BYTES_PER_KEY: Final = 208
"""Measured: up to 172 bytes an entry (two objects and a slot of the dict), 202 while the dict grows."""
_DIGEST_SIZE: Final = 47

LIVE: Final = 0
"""The record is the newest of its key and has a value; or there is no such record."""
SUPERSEDED: Final = 1
"""As `record_spans.survivors` has it. A newer record has the same key, or the record has no key."""
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

    def add(self, header: BatchHeader, body: bytes) -> None:
        """Take a batch, with its uncompressed records, into account. Raises KafkaError(corrupt_message)."""
        self.skip_to(header.last_offset)
        first = self.first_offset
        self.fates += bytes(header.next_offset - first - len(self.fates))
        offsets, fates = self._offsets, self.fates
        for offset, key, has_value in keys_of(header, body):
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
