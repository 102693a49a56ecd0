"""Where each record of a batch lies and what decides its fate in compaction, and batches made of some of the records.

Records that stay are copied as bytes: their offsets and timestamps are relative to the batch, which keeps its base.
"""

from collections.abc import Iterator, Sequence
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


def keys_of(header: rb.BatchHeader, body: bytes) -> Iterator[tuple[int, bytes | None, bool]]:
    """Offset, key and whether there is a value, of each record in the uncompressed `body`.

    Raises KafkaError(corrupt_message).
    """
    base_offset = header.base_offset
    position = 0
    length = len(body)
    try:
        for _ in range(header.record_count):
            # Most numbers here have one or two bytes, and a call costs as much as all the rest of the loop.
            byte = body[position]
            if byte < 0x80:
                end = position + 1 + (byte >> 1)
                position += 2
            elif body[position + 1] < 0x80:
                end = position + 2 + ((byte & 0x7F | body[position + 1] << 7) >> 1)
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
                delta = byte >> 1
                position += 1
            else:
                delta, position = get_varint(body, position)
            byte = body[position]
            if byte < 0x80:
                size = (byte >> 1) ^ -(byte & 1)
                position += 1
            else:
                size, position = get_varint(body, position)
            if size < 0:
                key = None
            else:
                key = body[position : position + size]
                position += size
            if position >= end or end > length:
                raise KafkaError(ErrorCode.corrupt_message, "a record's fields do not fit into its length")
            yield base_offset + delta, key, body[position] != _NULL
            position = end
    except IndexError:
        raise KafkaError(ErrorCode.corrupt_message, "the last record goes beyond its batch") from None
    if position != length:
        raise KafkaError(
            ErrorCode.corrupt_message, f"the batch holds more than the {header.record_count} records it counts"
        )


def survey(header: rb.BatchHeader, body: bytes) -> list[RecordSpan]:
    """Where the records of `body` are, the uncompressed records of a batch. Raises KafkaError(corrupt_message)."""
    spans = []
    start = 0
    for offset, key, has_value in keys_of(header, body):
        size, position = get_varint(body, start)
        end = position + size
        spans.append(RecordSpan(offset, key, has_value, start, end, get_varint(body, position + 1)[0]))
        start = end
    return spans


def survivors(header: rb.BatchHeader, body: bytes, gone: Buffer) -> list[RecordSpan]:
    """As `survey`, but without keys and without the records whose offset has a one in `gone`.

    `gone` has a byte for each offset of the batch; one that is neither 0 nor 1 says that the record has no value.
    """
    spans = []
    position = 0
    base_offset = header.base_offset
    for _ in range(header.record_count):
        start = position
        byte = body[position]
        if byte < 0x80:
            position += 1
            end = position + (byte >> 1)
        else:
            size, position = get_varint(body, position)
            end = position + size
        byte = body[position + 1]
        if byte < 0x80:
            timestamp_delta = (byte >> 1) ^ -(byte & 1)
            position += 2
        else:
            timestamp_delta, position = get_varint(body, position + 1)
        byte = body[position]
        delta = byte >> 1 if byte < 0x80 else get_varint(body, position)[0]
        fate = gone[delta]
        if fate != 1:
            spans.append(RecordSpan(base_offset + delta, None, not fate, start, end, timestamp_delta))
        position = end
    return spans


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
