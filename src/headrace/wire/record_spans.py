"""Where each record of a batch lies and what decides its fate in compaction, and batches made of some of the records.

Records that stay are copied as bytes: their offsets and timestamps are relative to the batch, which keeps its base.
"""

from collections.abc import Sequence
from itertools import pairwise
from operator import lt
from typing import Final, NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire import batch as rb
from headrace.wire.compression import Codec
from headrace.wire.records import assemble, get_varint, put_varint

_NULL: Final = 1
"""The varint -1."""


class RecordSpan(NamedTuple):
    """A record in the uncompressed body, from byte `start` to `end`; `offset` absolute, `timestamp_delta` in ms."""

    offset: int
    key: bytes | None
    has_value: bool
    start: int
    end: int
    timestamp_delta: int


class RecordKeys(NamedTuple):
    """Of each record in a batch its absolute offset and its key; the places of those without key, and without value.

    No offsets where they do not ascend within those of the batch: its producer has lied.
    """

    offsets: Sequence[int] | None
    keys: list[bytes | None]
    keyless: list[int]
    valueless: list[int]


def keys_of(header: rb.BatchHeader, body: bytes) -> RecordKeys:
    """The keys in the uncompressed `body`. Raises KafkaError(corrupt_message)."""
    keys: list[bytes | None] = []
    keyless: list[int] = []
    valueless: list[int] = []
    zigzags: list[int] = []
    position = 0
    length = len(body)
    add = keys.append
    try:
        for place in range(header.record_count):
            # Most numbers here have one or two bytes, and a call costs as much as all the rest of the loop.
            byte = body[position]
            if byte < 0x80:
                end = position + 1 + (byte >> 1)
                position += 2
            elif (second := body[position + 1]) < 0x80:
                end = position + 2 + ((byte & 0x7F | second << 7) >> 1)
                position += 3
            else:
                size, position = get_varint(body, position)
                end = position + size
                position += 1
            while body[position] > 0x7F:
                position += 1
            position += 1
            byte = body[position]
            if byte < 0x80:
                zigzags.append(byte)
                position += 1
            elif (second := body[position + 1]) < 0x80:
                zigzags.append(byte & 0x7F | second << 7)
                position += 2
            else:
                delta, position = get_varint(body, position)
                zigzags.append(delta << 1 if delta >= 0 else 1)
            byte = body[position]
            if byte < 0x80:
                position += 1
                size = byte >> 1
            else:
                size, position = get_varint(body, position)
                byte = 0 if size >= 0 else _NULL
            if byte & 1:
                add(None)
                keyless.append(place)
            else:
                add(body[position : position + size])
                position += size
            if position >= end or end > length:
                raise KafkaError(ErrorCode.corrupt_message, "a record's fields do not fit into its length")
            if body[position] == _NULL:
                valueless.append(place)
            position = end
    except IndexError:
        raise KafkaError(ErrorCode.corrupt_message, "the last record goes beyond its batch") from None
    if position != length:
        raise KafkaError(
            ErrorCode.corrupt_message, f"the batch holds more than the {header.record_count} records it counts"
        )
    return RecordKeys(_offsets_of(header, zigzags), keys, keyless, valueless)


def _offsets_of(header: rb.BatchHeader, zigzags: list[int]) -> Sequence[int] | None:
    """The offsets by their distances from the base, twice as large each and odd where it is negative."""
    count = len(zigzags)
    if count == header.last_offset_delta + 1 and zigzags == list(range(0, 2 * count, 2)):
        return range(header.base_offset, header.next_offset)
    deltas = [zigzag >> 1 for zigzag in zigzags]
    is_within = all(not zigzag & 1 for zigzag in zigzags) and max(deltas, default=0) <= header.last_offset_delta
    if not is_within or not all(map(lt, deltas, deltas[1:])):
        return None
    return [header.base_offset + delta for delta in deltas]


def survey(header: rb.BatchHeader, body: bytes) -> list[RecordSpan]:
    """Where the records of `body` are, the uncompressed records of a batch. Raises KafkaError(corrupt_message)."""
    spans = []
    start = 0
    offsets, keys, _, valueless = keys_of(header, body)
    if offsets is None:
        raise KafkaError(ErrorCode.corrupt_message, "the records' offsets do not ascend within those of the batch")
    without_value = set(valueless)
    for place, (offset, key) in enumerate(zip(offsets, keys, strict=True)):
        size, position = get_varint(body, start)
        end = position + size
        delta = get_varint(body, position + 1)[0]
        spans.append(RecordSpan(offset, key, place not in without_value, start, end, delta))
        start = end
    return spans


def survivors(header: rb.BatchHeader, body: bytes, gone: Buffer) -> list[RecordSpan]:
    """As `survey`, but without keys and without the records whose offset has a one in `gone`.

    `gone` has a byte for each offset of the batch; one that is neither 0 nor 1 says that the record has no value. Only
    for a batch of which `keys_of` tells the offsets.
    """
    if header.record_count == len(gone):
        return _survivors_without_gaps(header, body, gone)
    spans = []
    base_offset = header.base_offset
    for start, end in pairwise(_boundaries(header, body)):
        _, position = get_varint(body, start)
        timestamp_delta, position = get_varint(body, position + 1)
        delta, _ = get_varint(body, position)
        fate = gone[delta]
        if fate != 1:
            spans.append(RecordSpan(base_offset + delta, None, not fate, start, end, timestamp_delta))
    return spans


def _survivors_without_gaps(header: rb.BatchHeader, body: bytes, gone: Buffer) -> list[RecordSpan]:
    """Where every offset has its record, only those that stay are looked at."""
    boundaries = _boundaries(header, body)
    spans = []
    for place, fate in enumerate(gone):
        if fate != 1:
            start, end = boundaries[place], boundaries[place + 1]
            _, position = get_varint(body, start)
            timestamp_delta, _ = get_varint(body, position + 1)
            spans.append(RecordSpan(header.base_offset + place, None, not fate, start, end, timestamp_delta))
    return spans


def _boundaries(header: rb.BatchHeader, body: bytes) -> list[int]:
    """Where each record begins, and where the last one ends."""
    position = 0
    boundaries = [0]
    add = boundaries.append
    for _ in range(header.record_count):
        byte = body[position]
        if byte < 0x80:
            position += 1 + (byte >> 1)
        elif (second := body[position + 1]) < 0x80:
            position += 2 + ((byte & 0x7F | second << 7) >> 1)
        else:
            size, position = get_varint(body, position)
            position += size
        add(position)
    return boundaries


def batch_of(
    header: rb.BatchHeader, body: bytes, kept: Sequence[RecordSpan], *, delete_horizon_ms: int | None
) -> bytes:
    """A batch of the records `kept`, at least one, with the offsets, the producer and the codec of the original.

    `delete_horizon_ms`, from when on tombstones and markers in it may go, takes the place of the base timestamp
    (KIP-534); None leaves what there is.
    """
    if delete_horizon_ms is None:
        records: bytes | bytearray = b"".join([body[each.start : each.end] for each in kept])
        base_timestamp, attributes = header.base_timestamp, header.attributes
    else:
        records = _with_base_timestamp(header, body, kept, delete_horizon_ms)
        base_timestamp, attributes = delete_horizon_ms, header.attributes | rb.DELETE_HORIZON_FLAG
    return assemble(
        records,
        record_count=len(kept),
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp
        if header.is_log_append_time
        else header.base_timestamp + max(each.timestamp_delta for each in kept),
        base_offset=header.base_offset,
        codec=Codec(header.codec),
        level=None,
        leader_epoch=header.partition_leader_epoch,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        attributes=attributes,
    )


def _with_base_timestamp(header: rb.BatchHeader, body: bytes, kept: Sequence[RecordSpan], base: int) -> bytearray:
    shift = header.base_timestamp - base
    out = bytearray()
    for each in kept:
        _, attributes_at = get_varint(body, each.start)
        _, rest_at = get_varint(body, attributes_at + 1)
        record = bytearray(body[attributes_at : attributes_at + 1])
        put_varint(record, each.timestamp_delta + shift)
        record += body[rest_at : each.end]
        put_varint(out, len(record))
        out += record
    return out


def empty_batch(header: rb.BatchHeader) -> bytes:
    """The batch without its records: it still tells the last offset and the producer's last sequence."""
    kept = rb.LOG_APPEND_TIME_FLAG | rb.TRANSACTIONAL_FLAG | rb.CONTROL_FLAG
    out = bytearray(
        rb.pack_header(
            header._replace(
                batch_length=rb.HEADER_SIZE - rb.LOG_OVERHEAD,
                attributes=header.attributes & kept,
                base_timestamp=-1,
                record_count=0,
            )
        )
    )
    rb.seal(out)
    return bytes(out)
