"""The offset map of a broker without numpy: the same answers as `offset_map`, several times as slow, for small logs.

`__consumer_offsets` is such a log, and every broker has it.
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
"""Measured: a digest, a number, and their place in a table that doubles when it is full."""
_NULL: Final = 1
"""The varint -1."""


class _Record(NamedTuple):
    """`delta` is the distance from the batch's base offset, `size` in bytes with the length in front."""

    size: int
    delta: int
    key: bytes | None
    has_value: bool


class PlainOffsetMap:
    """See `OffsetMap`. Records are looked at as soon as they are added."""

    def __init__(self, first_offset: int, *, max_bytes: float, random_bytes: Callable[[int], bytes]) -> None:
        self.first_offset = first_offset
        self.latest_offset = first_offset - 1
        self._budget = max_bytes
        self._secret = random_bytes(32)
        self._newest: dict[bytes, int] = {}
        """By digest: twice the distance from the first offset, plus one without a value."""
        self._fates = bytearray()
        self._sizes = array("I")
        self.unreadable: dict[int, str] = {}
        """The batches whose records cannot be read, by base offset, and why."""

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_empty(self) -> bool:
        """Whether no batch was added."""
        return not self._fates

    def has_room(self, records: int, last_offset: int) -> bool:
        """Whether a batch of `records` records up to `last_offset` fits, even if every key in it is new."""
        offsets = last_offset - self.first_offset + 1
        return (len(self._newest) + records) * BYTES_PER_KEY + offsets * BYTES_PER_OFFSET <= self._budget

    def add(self, header: BatchHeader, body: Buffer) -> None:
        """Take a batch, with its uncompressed records, into account; one that cannot be read stays whole."""
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
            # A batch without offsets stays whole, and what is older than it goes.
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

    def look_at_waiting(self) -> None:
        """Nothing waits."""

    def skip_to(self, last_offset: int) -> None:
        """There is nothing more to know up to `last_offset`."""
        self.latest_offset = max(self.latest_offset, last_offset)

    def settle(self) -> None:
        """Nothing more is added: decide the fates."""
        for entry in self._newest.values():
            self._fates[entry >> 1] = TOMBSTONE if entry & 1 else LIVE

    def fates_in(self, header: BatchHeader) -> bytearray:
        """Of every offset in a batch that begins at `first_offset` or later."""
        first = header.base_offset - self.first_offset
        return self._fates[first : first + header.last_offset_delta + 1]

    def records_in(self, header: BatchHeader) -> Fates:
        """Of every record in a batch that begins at `first_offset` or later."""
        fates = self.fates_in(header)
        first = header.base_offset - self.first_offset
        sizes = self._sizes[first : first + len(fates)].tolist()
        if len(fates) == header.record_count:
            return Fates(fates, sizes)
        there = [place for place, size in enumerate(sizes) if size]
        return Fates(bytearray(fates[place] for place in there), [sizes[place] for place in there])

    def judge(self, headers: Sequence[BatchHeader], bodies: Sequence[Buffer]) -> list[Fates]:
        """Of the records in batches that begin before `first_offset`.

        A batch whose records cannot be read is noted in `unreadable`; its records are alive.
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
        return Fates(fates, [each.size for each in records])

    def _digest(self, key: bytes) -> bytes:
        return blake2b(key, digest_size=16, key=self._secret).digest()


def _read(header: BatchHeader, body: Buffer) -> tuple[bool, list[_Record]]:
    """Whether the records' offsets ascend within those of the batch (a producer may lie), and the records.

    Raises KafkaError(corrupt_message) where the body does not hold what the header says.
    """
    if header.record_count <= 0:
        raise _corrupt(f"a batch counts {header.record_count} records")
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
        raise _corrupt("the last record goes beyond its batch") from None
    if position != len(data):
        raise _corrupt(f"the batch holds more than the {header.record_count} records it counts")
    return has_offsets and last <= header.last_offset_delta, records


def _record(data: bytes, start: int) -> tuple[_Record, int]:
    length, position = get_varint(data, start)
    if length < 0:
        raise _corrupt("a record's length is negative")
    end = position + length
    if end > len(data):
        raise _corrupt("the last record goes beyond its batch")
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
