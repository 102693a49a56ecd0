"""Locates records in a batch, and builds batches from those that compaction keeps.

Records are copied as bytes, because their offsets and timestamps are relative to the batch. Only a delete horizon,
which replaces the base timestamp, changes their timestamp deltas.
"""

from collections.abc import Sequence
from typing import NamedTuple

from headrace.types import Buffer
from headrace.wire import batch as rb
from headrace.wire.compression import Codec
from headrace.wire.records import assemble
from headrace.wire.varint import get_varint, put_varint


class RecordSpan(NamedTuple):
    """A record in the uncompressed body, from byte `start` to `end`; `timestamp_delta` in ms."""

    has_value: bool
    start: int
    end: int
    timestamp_delta: int


def only_record(body: Buffer) -> RecordSpan:
    """Return the record of a control batch, which has exactly one."""
    return RecordSpan(True, 0, len(body), _timestamp_delta(body, 0))


def survivors(body: Buffer, fates: Buffer, sizes: Sequence[int]) -> list[RecordSpan]:
    """Return the records in `body` that are not superseded. `fates`: see `fates.py`; `sizes` in bytes."""
    kept: list[RecordSpan] = []
    end = 0
    for fate, size in zip(fates, sizes, strict=True):
        start, end = end, end + size
        if fate != 1:
            kept.append(RecordSpan(not fate, start, end, _timestamp_delta(body, start)))
    return kept


def _timestamp(value: int) -> int:
    """Limit a computed timestamp to 64 bits: a producer may have sent any value."""
    return min(max(value, -(2**63)), 2**63 - 1)


def _timestamp_delta(body: Buffer, start: int) -> int:
    _, attributes_at = get_varint(body, start)
    return get_varint(body, attributes_at + 1, 64)[0]


def batch_of(
    header: rb.BatchHeader, body: bytes, kept: Sequence[RecordSpan], *, delete_horizon_ms: int | None
) -> bytes:
    """Build a batch of the `kept` records (at least one), with the original's offsets, producer and codec.

    `delete_horizon_ms`, after which its tombstones or marker may be removed, replaces the base timestamp (KIP-534);
    None leaves it unchanged.
    """
    if delete_horizon_ms is None:
        records: bytes | bytearray = b"".join([body[record.start : record.end] for record in kept])
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
        else _timestamp(header.base_timestamp + max(record.timestamp_delta for record in kept)),
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
    for span in kept:
        _, attributes_at = get_varint(body, span.start)
        _, rest_at = get_varint(body, attributes_at + 1, 64)
        record = bytearray(body[attributes_at : attributes_at + 1])
        put_varint(record, _timestamp(span.timestamp_delta + shift))
        record += body[rest_at : span.end]
        put_varint(out, len(record))
        out += record
    return out


def empty_batch(header: rb.BatchHeader) -> bytes:
    """Return the batch without its records; it preserves the last offset and the producer's last sequence."""
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
