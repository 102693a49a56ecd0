"""Which record of each key is the newest one in the part of a log that is being compacted, in bounded memory.

A key is kept as it is up to 46 bytes, which spares the digest of most; a longer one as its BLAKE2b digest of 47 bytes.
An object of that size takes 80 bytes, and no key can be mistaken for a digest.
"""

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, cast

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

    Takes `BYTES_PER_KEY` a key and one byte an offset: ask `has_room` before `add`; and, while a batch is added, what
    its keys take. `fates` ends with the last batch
    that was added, and tells the fates once `settle` was called.
    """

    __slots__ = ("_budget", "_newest", "fates", "first_offset", "latest_offset")

    def __init__(self, first_offset: int, *, max_bytes: float) -> None:
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self.fates = bytearray()
        self._newest: dict[bytes, int] = {}
        """Offset of each key's newest record, or the offset's complement where that has no value."""
        self._budget = max_bytes

    def __len__(self) -> int:
        return len(self._newest)

    def has_room(self, records: int, last_offset: int) -> bool:
        """Whether a batch of `records` records up to `last_offset` fits, even if every key in it is new."""
        needed = (len(self._newest) + records) * BYTES_PER_KEY + last_offset - self.first_offset
        return needed <= self._budget

    def add(self, header: BatchHeader, body: bytes) -> None:
        """Take a batch, with its uncompressed records, into account. Raises KafkaError(corrupt_message)."""
        self.skip_to(header.last_offset)
        first = self.first_offset
        fates = self.fates
        fates += bytes(header.next_offset - first - len(fates))
        offsets, keys, keyless, valueless = keys_of(header, body)
        before = 0
        if offsets is None:
            # Such a batch stays whole, and what is older than it goes.
            offsets = [max(first, header.base_offset)] * len(keys)
        else:
            before = bisect_left(offsets, first)
            self._mark_superseded(offsets[before:])
            if valueless:
                offsets = list(offsets)
                for place in valueless:
                    offsets[place] = ~offsets[place]
        if keyless or before:
            kept = [place for place, key in enumerate(keys) if place >= before and key is not None]
            offsets, keys = [offsets[place] for place in kept], [keys[place] for place in kept]
        named = cast("list[bytes]", keys)
        if max(map(len, named), default=0) >= _DIGEST_SIZE:
            for place, key in enumerate(named):
                named[place] = _in_map(key)
        self._newest.update(zip(named, offsets, strict=True))

    def _mark_superseded(self, offsets: Sequence[int]) -> None:
        """So every record counts until `settle` has seen the newest ones."""
        first = self.first_offset
        if isinstance(offsets, range):
            self.fates[offsets.start - first : offsets.stop - first] = bytes([SUPERSEDED]) * len(offsets)
        else:
            for offset in offsets:
                self.fates[offset - first] = SUPERSEDED

    def settle(self) -> None:
        """Nothing more is added: tell the fates."""
        fates, first = self.fates, self.first_offset
        for offset in self._newest.values():
            if offset >= 0:
                fates[offset - first] = LIVE
            else:
                fates[~offset - first] = TOMBSTONE

    def skip_to(self, last_offset: int) -> None:
        """There is nothing more to know up to `last_offset`."""
        self.latest_offset = max(self.latest_offset, last_offset)

    def supersedes(self, key: bytes) -> bool:
        """Whether a record of `key` from before `first_offset` has a newer one."""
        return _in_map(key) in self._newest


def _in_map(key: bytes) -> bytes:
    return key if len(key) < _DIGEST_SIZE else blake2b(key, digest_size=_DIGEST_SIZE).digest()
