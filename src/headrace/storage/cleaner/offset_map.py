"""Which record of each key is the newest one in the part of a log that is being compacted, in bounded memory.

Records are looked at many at a time, in columns (`columns.py`), and known by digests of their keys.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from headrace.errors import KafkaError
from headrace.storage.cleaner.columns import Flags, Integers, RecordColumns, columns_of
from headrace.storage.cleaner.fates import BYTES_PER_OFFSET, LIVE, MANY_BATCHES, SUPERSEDED, TOMBSTONE, Fates
from headrace.storage.cleaner.key_digests import Digests, KeyDigests, Words
from headrace.types import Buffer
from headrace.wire.batch import BatchHeader

BYTES_PER_KEY: Final = 88
"""Measured: an entry has 24 bytes, and while new ones are sorted in, another 64."""

_CHUNK_BYTES: Final = 1024 * 1024
"""Records that are looked at together: few enough to stay in the processor's cache, many enough for numpy's calls."""
_FEW_KEYS: Final = 512 * 1024
"""New ones are sorted in when they are as many as those there, but at least this many."""


class OffsetMap:
    """The newest offset of each key from `first_offset` to `latest_offset`, and the fate of every offset in between.

    Takes `BYTES_PER_KEY` a key and `BYTES_PER_OFFSET` an offset: ask `has_room` before `add`; and, while records are
    looked at, a megabyte of them or a batch that is larger, as much again. `random_bytes` is for the digests, see
    KeyDigests. Fates are known when `settle` was called.

    Batches that were added are not looked at until there are enough of them. Those whose records cannot be read are
    noted in `unreadable`; nothing in them is superseded, and they supersede nothing.
    """

    __slots__ = (
        "_budget",
        "_digests",
        "_fates",
        "_new",
        "_new_count",
        "_newest",
        "_sizes",
        "_waiting",
        "_waiting_bytes",
        "_waiting_count",
        "first_offset",
        "latest_offset",
        "unreadable",
    )

    def __init__(self, first_offset: int, *, max_bytes: float, random_bytes: Callable[[int], bytes]) -> None:
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self._budget = max_bytes
        self._digests = KeyDigests(random_bytes)
        self._fates = bytearray()
        self._sizes = bytearray()
        self._newest = _Entries.none()
        """Sorted by digest, one a key."""
        self._new: list[_Entries] = []
        self._new_count = 0
        self._waiting: list[tuple[BatchHeader, Buffer]] = []
        self._waiting_bytes = 0
        self._waiting_count = 0
        self.unreadable: dict[int, str] = {}
        """The batches whose records cannot be read, by base offset, and why."""

    def __len__(self) -> int:
        self._settle_keys()
        return len(self._newest.places)

    @property
    def is_empty(self) -> bool:
        """Whether no batch was added."""
        return not self._fates and not self._waiting

    def has_room(self, records: int, last_offset: int) -> bool:
        """Whether a batch of `records` records up to `last_offset` fits, even if every key in it is new."""
        keys = len(self._newest.places) + self._new_count + self._waiting_count + records
        offsets = (last_offset - self.first_offset + 1) * BYTES_PER_OFFSET
        if keys * BYTES_PER_KEY + offsets <= self._budget:
            return True
        if not self._new_count and not self._waiting_count:
            return False
        # Most of them may be keys that are there already. To find that out is not for every batch.
        self._settle_keys()
        keys = len(self._newest.places) + max(records, len(self._newest.places) // 16)
        return keys * BYTES_PER_KEY + offsets <= self._budget

    def add(self, header: BatchHeader, body: Buffer) -> None:
        """Take a batch, with its uncompressed records, into account."""
        self.skip_to(header.last_offset)
        self._waiting.append((header, body))
        self._waiting_bytes += len(body)
        self._waiting_count += header.record_count
        if self._waiting_bytes >= _CHUNK_BYTES or len(self._waiting) >= MANY_BATCHES:
            self.look_at_waiting()

    def look_at_waiting(self) -> None:
        """Look at the records of the batches that were added, and let go of them."""
        if not self._waiting:
            return
        waiting = self._waiting.copy()
        self._waiting.clear()
        self._waiting_bytes = self._waiting_count = 0
        try:
            self._look_at(waiting)
        except KafkaError:
            self._look_at_each(waiting)

    def _look_at_each(self, batches: list[tuple[BatchHeader, Buffer]]) -> None:
        """Look at one batch after the other, as some of them have records that cannot be read: those stay whole."""
        for header, body in batches:
            try:
                self._look_at([(header, body)])
            except KafkaError as error:
                self.unreadable[header.base_offset] = str(error)

    def _look_at(self, batches: list[tuple[BatchHeader, Buffer]]) -> None:
        headers, bodies = zip(*batches, strict=True)
        columns = columns_of(headers, bodies)
        offsets = headers[-1].next_offset - self.first_offset
        self._fates += bytes(offsets - len(self._fates))
        self._sizes += bytes(4 * offsets - len(self._sizes))
        places = _offsets(columns, headers) - self.first_offset
        # A batch without offsets stays whole, and what is older than it goes.
        told = np.repeat(columns.has_offsets, columns.counts)
        first = np.array([header.base_offset for header in headers], np.int64) - self.first_offset
        places = np.where(told, places, np.repeat(np.maximum(first, 0), columns.counts))
        counts = told & (places >= 0)
        np.frombuffer(self._fates, np.uint8)[places[counts]] = SUPERSEDED
        np.frombuffer(self._sizes, np.uint32)[places[counts]] = columns.sizes[counts]
        valueless = told & ~columns.has_value
        named = np.flatnonzero((columns.key_sizes >= 0) & (places >= 0))
        digests = self._digests.of(columns.content, columns.key_starts[named], columns.key_sizes[named])
        self._new.append(_Entries(*digests, places[named] << 1 | valueless[named]))
        self._new_count += len(named)
        if self._new_count >= max(_FEW_KEYS, len(self._newest.places)):
            self._sort_in()

    def skip_to(self, last_offset: int) -> None:
        """There is nothing more to know up to `last_offset`."""
        self.latest_offset = max(self.latest_offset, last_offset)

    def settle(self) -> None:
        """Nothing more is added: tell the fates."""
        self._settle_keys()
        fates = np.frombuffer(self._fates, np.uint8)
        places = self._newest.places
        fates[places >> 1] = (places & 1).astype(np.uint8) * TOMBSTONE

    def fates_in(self, header: BatchHeader) -> bytearray:
        """Of every offset in a batch that begins at `first_offset` or later."""
        first = header.base_offset - self.first_offset
        return self._fates[first : first + header.last_offset_delta + 1]

    def records_in(self, header: BatchHeader) -> Fates:
        """Of every record in a batch that begins at `first_offset` or later."""
        fates = self.fates_in(header)
        first = header.base_offset - self.first_offset
        sizes = np.frombuffer(self._sizes, np.uint32, len(fates), 4 * first).astype(np.int64)
        if len(fates) == header.record_count:
            return Fates(fates, sizes.tolist())
        there = sizes > 0
        return Fates(bytearray(np.frombuffer(fates, np.uint8)[there]), sizes[there].tolist())

    def judge(self, headers: Sequence[BatchHeader], bodies: Sequence[Buffer]) -> list[Fates]:
        """Of the records in batches that begin before `first_offset`.

        A batch whose records cannot be read is noted in `unreadable`; its records are alive.
        """
        try:
            return self._judge(headers, bodies)
        except KafkaError as error:
            if len(headers) == 1:
                self.unreadable[headers[0].base_offset] = str(error)
                return [Fates(bytearray(), [])]
        return [self.judge([header], [body])[0] for header, body in zip(headers, bodies, strict=True)]

    def _judge(self, headers: Sequence[BatchHeader], bodies: Sequence[Buffer]) -> list[Fates]:
        columns = columns_of(headers, bodies)
        stays = np.zeros(len(columns.sizes), np.bool_)
        named = np.flatnonzero(columns.key_sizes >= 0)
        digests = self._digests.of(columns.content, columns.key_starts[named], columns.key_sizes[named])
        stays[named] = ~self._newest.has(digests)
        fates = np.where(stays, np.where(columns.has_value, LIVE, TOMBSTONE), SUPERSEDED).astype(np.uint8)
        # The last of these batches may end behind `first_offset`; a batch without offsets stays whole.
        told = np.repeat(columns.has_offsets, columns.counts)
        places = _offsets(columns, headers) - self.first_offset
        known = np.flatnonzero(told & (places >= 0) & (places < len(self._fates)))
        if known.size:
            fates[known] = np.frombuffer(self._fates, np.uint8)[places[known]]
        fates[~told] = LIVE
        ends = np.cumsum(columns.counts)
        return [
            Fates(bytearray(fates[end - count : end]), columns.sizes[end - count : end].tolist())
            for count, end in zip(columns.counts.tolist(), ends.tolist(), strict=True)
        ]

    # -- records -------------------------------------------------------------------------------------------------------

    def _settle_keys(self) -> None:
        self.look_at_waiting()
        if self._new:
            self._sort_in()

    def _sort_in(self) -> None:
        self._new.append(self._newest)
        self._newest = _Entries.none()
        parts, self._new, self._new_count = self._new, [], 0
        self._newest = _newest_of(parts)


def _offsets(columns: RecordColumns, headers: Sequence[BatchHeader]) -> Integers:
    bases = np.array([header.base_offset for header in headers], np.int64)
    offsets: Integers = np.repeat(bases, columns.counts) + columns.deltas
    return offsets


class _Entries(NamedTuple):
    """A row a record: the digest of its key; twice its distance from the first offset, plus one without a value."""

    high: Words
    low: Words
    places: Integers

    @classmethod
    def none(cls) -> "_Entries":
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))

    def has(self, digests: Digests) -> Flags:
        """Which of the digests are here. The entries are sorted by `high`, and one digest has one entry."""
        at = np.searchsorted(self.high, digests.high)
        found = np.zeros(len(at), np.bool_)
        rows = np.flatnonzero(at < len(self.high))
        while rows.size:
            alike = self.high[at[rows]] == digests.high[rows]
            rows = rows[alike]
            same = self.low[at[rows]] == digests.low[rows]
            found[rows[same]] = True
            rows = rows[~same]
            at[rows] += 1
            rows = rows[at[rows] < len(self.high)]
        return found


def _newest_of(parts: list[_Entries]) -> _Entries:
    """The newest entry of each digest, sorted by `high`. Empties `parts`, to have their memory back."""
    high = np.concatenate([each.high for each in parts])
    low = np.concatenate([each.low for each in parts])
    places = np.concatenate([each.places for each in parts])
    parts.clear()
    if not len(high):
        return _Entries.none()
    order = np.argsort(high)
    if _are_mixed(high[order], low[order]):
        order = np.lexsort((low, high))
    high, low = high[order], low[order]
    first = np.flatnonzero(np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])))
    return _Entries(high[first], low[first], np.maximum.reduceat(places[order], first))


def _are_mixed(high: Words, low: Words) -> bool:
    """Whether two keys have half a digest in common, so that the entries of one may not stand next to each other."""
    return bool(((high[1:] == high[:-1]) & (low[1:] != low[:-1])).any())
