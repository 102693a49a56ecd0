"""Finds the newest record of every key in the dirty part of a log, in bounded memory.

Processes many records at a time, in columns (`columns.py`), and identifies keys by digests.
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
"""Measured: 24 bytes for an entry, and another 64 while new entries are merged."""

_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes processed together: few enough for the processor's cache, enough to amortize numpy's calls."""
_MIN_MERGE: Final = 512 * 1024
"""New entries are merged once there are at least this many, and no fewer than those already merged."""


class OffsetMap:
    """The newest offset of every key from `first_offset` to `latest_offset`, and the fate of every offset in between.

    Takes `BYTES_PER_KEY` per key and `BYTES_PER_OFFSET` per offset: call `has_room` before `add`. Pending records take
    about 2 MB, or twice the largest batch. `random_bytes` is for `KeyDigests`. Call `settle` before reading fates.

    Added batches stay pending until they are processed together. Unreadable ones are added to `unreadable`: they
    supersede nothing and are kept.
    """

    __slots__ = (
        "_budget",
        "_digests",
        "_fates",
        "_new",
        "_new_count",
        "_newest",
        "_pending",
        "_pending_bytes",
        "_pending_count",
        "_sizes",
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
        """Sorted by digest, one per key."""
        self._new: list[_Entries] = []
        self._new_count = 0
        self._pending: list[tuple[BatchHeader, Buffer]] = []
        self._pending_bytes = 0
        self._pending_count = 0
        self.unreadable: dict[int, str] = {}
        """The errors of unreadable batches, by base offset."""

    def __len__(self) -> int:
        self._settle_keys()
        return len(self._newest.places)

    @property
    def is_empty(self) -> bool:
        """True if no batch was added."""
        return not self._fates and not self._pending

    def has_room(self, records: int, last_offset: int) -> bool:
        """Return True if a batch of `records` records up to `last_offset` fits, even if all of its keys are new."""
        keys = len(self._newest.places) + self._new_count + self._pending_count + records
        offsets = (last_offset - self.first_offset + 1) * BYTES_PER_OFFSET
        if keys * BYTES_PER_KEY + offsets <= self._budget:
            return True
        if not self._new_count and not self._pending_count:
            return False
        # most new entries may have known keys: merge them to find out, which is too slow for every batch
        self._settle_keys()
        keys = len(self._newest.places) + max(records, len(self._newest.places) // 16)
        return keys * BYTES_PER_KEY + offsets <= self._budget

    def add(self, header: BatchHeader, body: Buffer) -> None:
        """Add a batch with its uncompressed records."""
        self.skip_to(header.last_offset)
        self._pending.append((header, body))
        self._pending_bytes += len(body)
        self._pending_count += header.record_count
        if self._pending_bytes >= _CHUNK_BYTES or len(self._pending) >= MANY_BATCHES:
            self.process_pending()

    def process_pending(self) -> None:
        """Process pending batches, which frees their memory."""
        if not self._pending:
            return
        pending = self._pending.copy()
        self._pending.clear()
        self._pending_bytes = self._pending_count = 0
        try:
            self._process(pending)
        except KafkaError:
            self._process_singly(pending)

    def _process_singly(self, batches: list[tuple[BatchHeader, Buffer]]) -> None:
        """Process batches one by one, to find the unreadable ones."""
        for header, body in batches:
            try:
                self._process([(header, body)])
            except KafkaError as error:
                self.unreadable[header.base_offset] = str(error)

    def _process(self, batches: list[tuple[BatchHeader, Buffer]]) -> None:
        headers, bodies = zip(*batches, strict=True)
        columns = columns_of(headers, bodies)
        offsets = headers[-1].next_offset - self.first_offset
        self._fates += bytes(offsets - len(self._fates))
        self._sizes += bytes(4 * offsets - len(self._sizes))
        places = _offsets(columns, headers) - self.first_offset
        # a batch without valid offsets is kept whole, and supersedes older records
        valid = np.repeat(columns.has_offsets, columns.counts)
        first = np.array([header.base_offset for header in headers], np.int64) - self.first_offset
        places = np.where(valid, places, np.repeat(np.maximum(first, 0), columns.counts))
        counts = valid & (places >= 0)
        np.frombuffer(self._fates, np.uint8)[places[counts]] = SUPERSEDED
        np.frombuffer(self._sizes, np.uint32)[places[counts]] = columns.sizes[counts]
        valueless = valid & ~columns.has_value
        keyed = np.flatnonzero((columns.key_sizes >= 0) & (places >= 0))
        digests = self._digests.of(columns.content, columns.key_starts[keyed], columns.key_sizes[keyed])
        self._new.append(_Entries(*digests, places[keyed] << 1 | valueless[keyed]))
        self._new_count += len(keyed)
        if self._new_count >= max(_MIN_MERGE, len(self._newest.places)):
            self._merge()

    def skip_to(self, last_offset: int) -> None:
        """Extend the map to `last_offset`: all records up to it have been added."""
        self.latest_offset = max(self.latest_offset, last_offset)

    def settle(self) -> None:
        """Compute the fate of every offset. Call this once, after the last `add`."""
        self._settle_keys()
        fates = np.frombuffer(self._fates, np.uint8)
        places = self._newest.places
        fates[places >> 1] = (places & 1).astype(np.uint8) * TOMBSTONE

    def fates_in(self, header: BatchHeader) -> bytearray:
        """Return the fate of every offset in a batch that begins at `first_offset` or later."""
        first = header.base_offset - self.first_offset
        return self._fates[first : first + header.last_offset_delta + 1]

    def records_in(self, header: BatchHeader) -> Fates:
        """Return the fate of every record in a batch that begins at `first_offset` or later."""
        fates = self.fates_in(header)
        first = header.base_offset - self.first_offset
        sizes = np.frombuffer(self._sizes, np.uint32, len(fates), 4 * first).astype(np.int64)
        if len(fates) == header.record_count:
            return Fates(fates, sizes.tolist())
        present = sizes > 0
        return Fates(bytearray(np.frombuffer(fates, np.uint8)[present]), sizes[present].tolist())

    def judge(self, headers: Sequence[BatchHeader], bodies: Sequence[Buffer]) -> list[Fates]:
        """Return the fates of the records in batches that begin before `first_offset`.

        Batches with unreadable records are added to `unreadable`, and kept.
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
        is_newest = np.zeros(len(columns.sizes), np.bool_)
        keyed = np.flatnonzero(columns.key_sizes >= 0)
        digests = self._digests.of(columns.content, columns.key_starts[keyed], columns.key_sizes[keyed])
        is_newest[keyed] = ~self._newest.has(digests)
        fates = np.where(is_newest, np.where(columns.has_value, LIVE, TOMBSTONE), SUPERSEDED).astype(np.uint8)
        # the last of these batches may end after `first_offset`; batches without valid offsets are kept whole
        valid = np.repeat(columns.has_offsets, columns.counts)
        places = _offsets(columns, headers) - self.first_offset
        known = np.flatnonzero(valid & (places >= 0) & (places < len(self._fates)))
        if known.size:
            fates[known] = np.frombuffer(self._fates, np.uint8)[places[known]]
        fates[~valid] = LIVE
        ends = np.cumsum(columns.counts)
        return [
            Fates(bytearray(fates[end - count : end]), columns.sizes[end - count : end].tolist())
            for count, end in zip(columns.counts.tolist(), ends.tolist(), strict=True)
        ]

    # -- records -------------------------------------------------------------------------------------------------------

    def _settle_keys(self) -> None:
        self.process_pending()
        if self._new:
            self._merge()

    def _merge(self) -> None:
        self._new.append(self._newest)
        self._newest = _Entries.none()
        parts, self._new, self._new_count = self._new, [], 0
        self._newest = _newest_of(parts)


def _offsets(columns: RecordColumns, headers: Sequence[BatchHeader]) -> Integers:
    bases = np.array([header.base_offset for header in headers], np.int64)
    offsets: Integers = np.repeat(bases, columns.counts) + columns.deltas
    return offsets


class _Entries(NamedTuple):
    """For each record, the digest of its key (`high`, `low`) and its place.

    The place is twice the offset from the map's `first_offset`, plus 1 if the record has no value.
    """

    high: Words
    low: Words
    places: Integers

    @classmethod
    def none(cls) -> "_Entries":
        return cls(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.int64))

    def has(self, digests: Digests) -> Flags:
        """Return a flag per digest: True if it has an entry. Requires unique entries, sorted by `high`."""
        at = np.searchsorted(self.high, digests.high)
        found = np.zeros(len(at), np.bool_)
        rows = np.flatnonzero(at < len(self.high))
        while rows.size:
            equal = self.high[at[rows]] == digests.high[rows]
            rows = rows[equal]
            same = self.low[at[rows]] == digests.low[rows]
            found[rows[same]] = True
            rows = rows[~same]
            at[rows] += 1
            rows = rows[at[rows] < len(self.high)]
        return found


def _newest_of(parts: list[_Entries]) -> _Entries:
    """Return the newest entry of every digest, sorted by `high`. Empties `parts` to free their memory."""
    high = np.concatenate([part.high for part in parts])
    low = np.concatenate([part.low for part in parts])
    places = np.concatenate([part.places for part in parts])
    parts.clear()
    if not len(high):
        return _Entries.none()
    order = np.argsort(high)
    if _has_half_collision(high[order], low[order]):
        order = np.lexsort((low, high))
    high, low = high[order], low[order]
    first = np.flatnonzero(np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])))
    return _Entries(high[first], low[first], np.maximum.reduceat(places[order], first))


def _has_half_collision(high: Words, low: Words) -> bool:
    """Return True if different digests share the upper half: sorting by that half can then separate equal digests."""
    return bool(((high[1:] == high[:-1]) & (low[1:] != low[:-1])).any())
