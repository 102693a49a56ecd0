"""Read and write single records, for internal topics, compaction, tools and tests; never on the hot path.

Layout: https://kafka.apache.org/documentation/#record
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer
from headrace.wire import batch as rb
from headrace.wire.compression import Codec, compress, compress_chunks, decompress
from headrace.wire.varint import get_varint, varint

Headers = Sequence[tuple[str, bytes | None]]

_SIGN: Final = 1 << 63
_ALL_BITS: Final = (1 << 64) - 1
MAX_UNCOMPRESSED_BATCH: Final = 256 * 1024 * 1024
"""Maximum size of an uncompressed batch in bytes; larger batches are treated as corrupt."""


class RecordData(NamedTuple):
    """A record to write; `timestamp` in ms."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = ()


class Record(NamedTuple):
    """A record in a log; `timestamp` in ms."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def build_batch(
    records: Sequence[RecordData],
    *,
    base_offset: int = 0,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
) -> bytes:
    """Build a batch of `records` with its checksum. `attributes` adds flags such as transactional or control."""
    base_timestamp = records[0].timestamp
    body = bytearray()
    for delta, record in enumerate(records):
        _append_record(body, delta, record.timestamp - base_timestamp, record)
    return assemble(
        body,
        record_count=len(records),
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        base_offset=base_offset,
        codec=codec,
        level=level,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        attributes=attributes,
    )


def plain_batch(records: Iterable[tuple[bytes, bytes | None]], timestamp: int, codec: Codec) -> bytes:
    """Build a batch of keys and values, all with `timestamp` (ms); same result as `build_batch`, but faster."""
    parts: list[bytes] = []
    delta = 0
    for key, value in records:
        content = _NULL if value is None else varint(len(value)) + value
        record = b"".join((b"\x00\x00", varint(delta), varint(len(key)), key, content, b"\x00"))
        parts += (varint(len(record)), record)
        delta += 1
    body = b"".join(parts)
    return rb.plain(body if codec is Codec.NONE else compress(codec, body), delta, timestamp, codec)


def assemble(
    body: Buffer,
    *,
    record_count: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int,
    codec: Codec,
    level: int | None,
    leader_epoch: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    attributes: int,
) -> bytes:
    """Build a batch from `body`, the concatenated uncompressed records."""
    header = rb.BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        partition_leader_epoch=leader_epoch,
        magic=rb.MAGIC_V2,
        crc=0,
        attributes=attributes & ~rb.CODEC_MASK | codec,
        last_offset_delta=last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=record_count,
    )
    return bytes(_with_header((compress(codec, body, level),), header, None))


def recompress(
    header: rb.BatchHeader, pieces: Iterable[Buffer], codec: Codec, level: int | None, max_size: int
) -> bytearray:
    """Compress the records of a batch, in `pieces`, with `codec`, which is the topic's `compression.type`.

    Raises KafkaError(message_too_large) as soon as the result exceeds `max_size` bytes.
    """
    header = header._replace(attributes=header.attributes & ~rb.CODEC_MASK | codec)
    return _with_header(compress_chunks(codec, pieces, level), header, max_size)


def _with_header(packed: Iterable[bytes], header: rb.BatchHeader, max_size: int | None) -> bytearray:
    out = bytearray(rb.HEADER_SIZE)
    for part in packed:
        out += part
        if max_size is not None and len(out) > max_size:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"the record batch, compressed with the topic's compression.type {Codec(header.codec).name.lower()},"
                f" exceeds the {max_size} bytes that max.message.bytes allows",
            )
    out[: rb.HEADER_SIZE] = rb.pack_header(header._replace(batch_length=len(out) - rb.LOG_OVERHEAD))
    rb.seal(out)
    return out


def uncompressed_body(header: rb.BatchHeader, data: Buffer, position: int, max_size: int | None = None) -> bytes:
    """Decompress the records of the batch at `position`, up to `max_size` bytes (MAX_UNCOMPRESSED_BATCH by default).

    Raises KafkaError: corrupt_message for malformed or too large data, unsupported_compression_type for an unknown
    codec.
    """
    if header.codec > Codec.ZSTD:
        raise KafkaError(ErrorCode.unsupported_compression_type, f"compression type {header.codec} does not exist")
    packed = memoryview(data)[position + rb.HEADER_SIZE : position + header.size]
    return decompress(Codec(header.codec), packed, MAX_UNCOMPRESSED_BATCH if max_size is None else max_size)


def batch_headers(data: Buffer) -> Iterator[tuple[int, rb.BatchHeader]]:
    """Yield `(position, header)` of every batch in `data`, except an incomplete last one."""
    position = 0
    while position + rb.HEADER_SIZE <= len(data):
        header = rb.parse_header(data, position)
        if header.batch_length < rb.HEADER_SIZE - rb.LOG_OVERHEAD or position + header.size > len(data):
            return
        yield position, header
        position += header.size


def iter_records(data: Buffer) -> Iterator[Record]:
    """Yield the records of all complete batches in `data`, including control batches.

    Raises KafkaError as `uncompressed_body` and `records_of` do.
    """
    for position, header in batch_headers(data):
        yield from records_of(header, uncompressed_body(header, data, position))


def records_of(header: rb.BatchHeader, body: Buffer) -> Iterator[Record]:
    """Yield the records in `body`, with absolute offsets and timestamps.

    Raises KafkaError(corrupt_message) unless `body` contains exactly `header.record_count` records.
    """
    position = 0
    append_time = header.max_timestamp if header.is_log_append_time else None
    try:
        for _ in range(header.record_count):
            size, position = get_varint(body, position)
            end = position + size
            if size < 0 or end > len(body):
                raise KafkaError(
                    ErrorCode.corrupt_message,
                    f"a record declares {size} bytes, but {len(body) - position} bytes of its batch are left",
                )
            timestamp_delta, after = get_varint(body, position + 1, 64)
            offset_delta, after = get_varint(body, after)
            key, after = _nullable_bytes(body, after, end)
            value, after = _nullable_bytes(body, after, end)
            headers, after = _headers(body, after, end)
            if after != end:
                raise KafkaError(ErrorCode.corrupt_message, "a record's length does not match its fields")
            yield Record(
                header.base_offset + offset_delta,
                _wrapped(header.base_timestamp + timestamp_delta) if append_time is None else append_time,
                key,
                value,
                headers,
            )
            position = end
    except IndexError as error:
        raise KafkaError(
            ErrorCode.corrupt_message, f"the batch ends before the last of its {header.record_count} declared records"
        ) from error
    if position != len(body):
        raise KafkaError(
            ErrorCode.corrupt_message, f"the batch contains more than the declared {header.record_count} records"
        )


def _wrapped(timestamp: int) -> int:
    """Wrap a timestamp at 64 bits, like Kafka."""
    return (timestamp + _SIGN & _ALL_BITS) - _SIGN


def _append_record(out: bytearray, offset_delta: int, timestamp_delta: int, record: RecordData) -> None:
    key, value, _, headers = record
    fields = [b"\x00", varint(timestamp_delta), varint(offset_delta)]
    fields += (_NULL,) if key is None else (varint(len(key)), key)
    fields += (_NULL,) if value is None else (varint(len(value)), value)
    fields.append(varint(len(headers)))
    for name, content in headers:
        encoded = name.encode(errors="surrogateescape")
        fields += (varint(len(encoded)), encoded)
        fields += (_NULL,) if content is None else (varint(len(content)), content)
    body = b"".join(fields)
    out += varint(len(body))
    out += body


_NULL: Final = varint(-1)
"""The length of a null key, value or header."""


def _nullable_bytes(data: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = get_varint(data, position)
    if size < 0:
        return None, position
    if position + size > end:
        raise KafkaError(ErrorCode.corrupt_message, "a key, value or header is longer than its record")
    return bytes(data[position : position + size]), position + size


def _headers(data: Buffer, position: int, end: int) -> tuple[tuple[tuple[str, bytes | None], ...], int]:
    count, position = get_varint(data, position)
    if count == 0:
        return (), position
    if count < 0 or count > end - position:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"a record declares {count} headers, but has only {end - position} bytes for them",
        )
    headers = []
    for _ in range(count):
        name, position = _nullable_bytes(data, position, end)
        if name is None:
            raise KafkaError(ErrorCode.corrupt_message, "a header has no name")
        value, position = _nullable_bytes(data, position, end)
        # Kafka accepts any bytes as a name: preserve them
        headers.append((name.decode(errors="surrogateescape"), value))
    return tuple(headers), position
