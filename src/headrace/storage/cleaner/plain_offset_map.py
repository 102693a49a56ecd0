"""The offset map for installations without numpy: equivalent to `offset_map`, but several times slower.

It suits small logs such as `__consumer_offsets`, which every broker has.
"""

from array import array
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.cleaner.fates import BYTES_PER_OFFSET, LIVE, SUPERSEDED, TOMBSTONE, Fates
from headrace.types import Buffer
from headrace.wire.batch import BatchHeader
from headrace.wire.varint import get_varint

BYTES_PER_KEY: Final = 260
"""Measured: a digest and a number in a hash table that doubles when it is full."""
_NULL: Final = 1
"""The varint -1."""


class _Record(NamedTuple):
    """`delta` is relative to the batch's base offset; `size` is in bytes and includes the length field."""

    size: int
    delta: int
    key: bytes | None
    has_value: bool


class PlainOffsetMap:
    """`OffsetMap` without numpy. Batches are processed as soon as they are added."""

    def __init__(self, first_offset: int, *, max_bytes: float, random_bytes: Callable[[int], bytes]) -> None:
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self._budget = max_bytes
        self._secret = random_bytes(32)
        self._newest: dict[bytes, int] = {}
        """By digest: twice the offset relative to `first_offset`, plus 1 for a record without a value."""
        self._fates = bytearray()
        self._sizes = array("I")
        self.unreadable: dict[int, str] = {}
        """The errors of unreadable batches, by base offset."""

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_empty(self) -> bool:
        """True if no batch was added."""
        return not self._fates

    def has_room(self, records: int, last_offset: int) -> bool:
        """Return True if a batch of `records` records up to `last_offset` fits, even if all of its keys are new."""
        offsets = last_offset - self.first_offset + 1
        return (len(self._newest) + records) * BYTES_PER_KEY + offsets * BYTES_PER_OFFSET <= self._budget

    def add(self, header: BatchHeader, body: Buffer) -> None:
        """Process a batch with its uncompressed records; unreadable ones are kept whole."""
        self.skip_to(header.last_offset)
        try:
            has_offsets, records = _read(header, body)
        except KafkaError as error:
            self.unreadable[header.base_offset] = str(error)
            return
        missing = header.next_offset - self.first_offset - len(self._fates)
        self._fates += bytes(missing)
        self._sizes.frombytes(bytes(self._sizes.itemsize * missing))
        first = header.base_offset - self.first_offset
        for size, delta, key, has_value in records:
            # a batch without valid offsets is kept whole, and supersedes older records
            place = first + delta if has_offsets else max(first, 0)
            if place < 0:
                continue
            if has_offsets:
                self._fates[place] = SUPERSEDED
                self._sizes[place] = size
            if key is not None:
                digest = self._digest(key)
                entry = place << 1 | (has_offsets and not has_value)
                if entry > self._newest.get(digest, -1):
                    self._newest[digest] = entry

    def process_pending(self) -> None:
        """Do nothing: no batch is ever pending."""

    def skip_to(self, last_offset: int) -> None:
        """Extend the map to `last_offset`: all records up to it have been added."""
        self.latest_offset = max(self.latest_offset, last_offset)

    def settle(self) -> None:
        """Compute the fate of every offset. Call this once, after the last `add`."""
        for entry in self._newest.values():
            self._fates[entry >> 1] = TOMBSTONE if entry & 1 else LIVE

    def fates_in(self, header: BatchHeader) -> bytearray:
        """Return the fate of every offset in a batch that begins at `first_offset` or later."""
        first = header.base_offset - self.first_offset
        return self._fates[first : first + header.last_offset_delta + 1]

    def records_in(self, header: BatchHeader) -> Fates:
        """Return the fate of every record in a batch that begins at `first_offset` or later."""
        fates = self.fates_in(header)
        first = header.base_offset - self.first_offset
        sizes = self._sizes[first : first + len(fates)].tolist()
        if len(fates) == header.record_count:
            return Fates(fates, sizes)
        present = [place for place, size in enumerate(sizes) if size]
        return Fates(bytearray(fates[place] for place in present), [sizes[place] for place in present])

    def judge(self, headers: Sequence[BatchHeader], bodies: Sequence[Buffer]) -> list[Fates]:
        """Return the fates of the records in batches that begin before `first_offset`.

        Batches with unreadable records are added to `unreadable`, and kept.
        """
        return [self._judged(header, body) for header, body in zip(headers, bodies, strict=True)]

    def _judged(self, header: BatchHeader, body: Buffer) -> Fates:
        try:
            has_offsets, records = _read(header, body)
        except KafkaError as error:
            self.unreadable[header.base_offset] = str(error)
            return Fates(bytearray(), [])
        fates = bytearray()
        first = header.base_offset - self.first_offset
        for _, delta, key, has_value in records:
            place = first + delta
            if not has_offsets:
                fates.append(LIVE)
            elif 0 <= place < len(self._fates):
                fates.append(self._fates[place])
            elif key is None or self._digest(key) in self._newest:
                fates.append(SUPERSEDED)
            else:
                fates.append(LIVE if has_value else TOMBSTONE)
        return Fates(fates, [record.size for record in records])

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._secret).digest()


def _read(header: BatchHeader, body: Buffer) -> tuple[bool, list[_Record]]:
    """Return `(True, records)` if their offsets ascend and stay within the batch's range, else `(False, records)`.

    Raises KafkaError(corrupt_message) if the body does not match the header.
    """
    if header.record_count <= 0:
        raise _corrupt(f"a batch header declares {header.record_count} records, but must declare at least 1")
    data = bytes(body)
    records: list[_Record] = []
    position = 0
    last = -1
    has_offsets = True
    try:
        for _ in range(header.record_count):
            record, position = _record(data, position)
            has_offsets = has_offsets and record.delta > last
            last = record.delta
            records.append(record)
    except IndexError:
        raise _corrupt("the last record extends past the end of its batch") from None
    if position != len(data):
        raise _corrupt(f"the batch contains more than the declared {header.record_count} records")
    return has_offsets and last <= header.last_offset_delta, records


def _record(data: bytes, start: int) -> tuple[_Record, int]:
    length, position = get_varint(data, start)
    if length < 0:
        raise _corrupt("a record's length is negative")
    end = position + length
    if end > len(data):
        raise _corrupt("the last record extends past the end of its batch")
    _, position = get_varint(data, position + 1, 64)
    delta, position = get_varint(data, position)
    key_size, position = get_varint(data, position)
    key_end = position + max(key_size, 0)
    if key_end >= end:
        raise _corrupt("a record's fields do not fit into its length")
    key = None if key_size < 0 else data[position:key_end]
    return _Record(end - start, delta, key, data[key_end] != _NULL), end


def _corrupt(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, reason)
