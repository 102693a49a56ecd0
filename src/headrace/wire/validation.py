"""Validate batches in Produce requests: header, checksum and records (`record_checks`)."""

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.types import Buffer, new_tuple
from headrace.wire.batch import (
    CODEC_MASK,
    CONTROL_FLAG,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    BatchHeader,
    parse_header,
    peek,
)
from headrace.wire.checksum import crc32c
from headrace.wire.compression import Codec, decompress, decompress_chunks
from headrace.wire.record_checks import (
    HEADER_COUNT,
    LONG_NUMBER,
    MIN_RECORD,
    NAMELESS_HEADER,
    NO_TIMESTAMP,
    NOT_FILLED,
    OUTSIDE,
    TOO_SHORT,
    RecordWalk,
)

SLICE: Final = 4000
"""Records and headers per call of the compiled loop (about 0.1 ms), after which other threads can run."""
_NO_LIMIT: Final = 1 << 62
_ANY_DELTA: Final = -(1 << 31)
_LENGTH: Final = Struct(">i")
_LENGTH_POSITION: Final = 8
_CODEC_POSITION: Final = 22
_UP_TO_MAGIC: Final = 17
"""Bytes of a batch up to its magic, inclusive."""
_MIN_LENGTH: Final = 14
"""The smallest value in a batch's length field, whatever its magic."""
_OLD_FORMAT: Final = "message formats v0 and v1 are not supported; send record batches with magic 2"


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, why)


def _corrupt(why: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, why)


def _unreadable(why: str) -> KafkaError:
    # as in Kafka; clients would retry after corrupt_message
    return KafkaError(ErrorCode.unknown_server_error, why)


def unpacked(codec: int, data: Buffer) -> Iterator[bytes]:
    """Decompress a batch in pieces. Raises KafkaError(unknown_server_error)."""
    if codec > Codec.ZSTD:
        raise _unreadable(f"compression type {codec} does not exist")
    try:
        yield from decompress_chunks(Codec(codec), memoryview(data)[HEADER_SIZE:], _NO_LIMIT)
    except KafkaError as error:
        raise _unreadable(str(error)) from error


class ValidBatch(NamedTuple):
    """A valid batch of a Produce request; `records` has facts about its records, such as the range of timestamps.

    `body` contains the records if they were decompressed in one go; `unpack` decompresses them in pieces.
    """

    header: BatchHeader
    data: bytes
    records: RecordWalk
    body: bytes | None
    unpack: Callable[[int, Buffer], Iterable[bytes]]


def validate_produced(
    data: bytes,
    max_message_bytes: int,
    body: bytes | None = None,
    unpack: Callable[[int, Buffer], Iterable[bytes]] = unpacked,
) -> ValidBatch:
    """Validate that `data` is exactly one batch; the incomplete beginning of another one is cut off, as in Kafka.

    `body` contains the decompressed records, if available; otherwise `unpack` decompresses them in pieces. Raises
    KafkaError: invalid_record for no batch or several, an incomplete or inconsistent batch, or an older message format;
    message_too_large over `max_message_bytes`; corrupt_message for a wrong checksum, magic or length;
    unknown_server_error for an unknown codec or malformed compressed data.
    """
    size = len(data)
    if size < HEADER_SIZE:
        raise _too_short(data)
    header = parse_header(data)
    # unpacked once, because access to a field of a named tuple is several times slower than to a local
    (
        base_offset,
        length,
        _,
        magic,
        crc,
        attributes,
        last_delta,
        base_timestamp,
        _,
        producer_id,
        epoch,
        sequence,
        count,
    ) = header
    if magic != MAGIC_V2 or length + LOG_OVERHEAD != size:
        _check_alone(data, header)
        size = length + LOG_OVERHEAD
        data = data[:size]
    if size > max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"the record batch has {size} bytes, but max.message.bytes of the topic allows only {max_message_bytes}",
        )
    if crc32c(memoryview(data)[CRC_START:]) != crc:
        raise _corrupt("the checksum of the record batch is wrong")
    if base_offset != 0:
        raise _invalid(f"the base offset of a produced record batch must be 0, not {base_offset}")
    if attributes & CONTROL_FLAG:
        raise _invalid("clients may not write control records")
    if count <= 0 or last_delta + 1 != count:
        raise _invalid(f"the batch declares {count} records, but its last offset delta is {last_delta}")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        raise _invalid(f"a batch with a producer id needs an epoch and a sequence, not {epoch} and {sequence}")
    walk = RecordWalk(count, base_timestamp, NO_TIMESTAMP, _ANY_DELTA)
    codec = attributes & CODEC_MASK
    if codec == 0:
        end = walk.walk(data, HEADER_SIZE, SLICE, True, False)
        if end != size or walk.left:
            _walk_on(walk, data, end, count)
    elif body is not None:
        end = walk.walk(body, 0, SLICE, True, False)
        if end != len(body) or walk.left:
            _walk_on(walk, body, end, count)
    else:
        walk_in_pieces(walk, unpack(codec, data))
    if walk.misplaced >= 0:
        raise _invalid(f"the offset deltas must be 0, 1, 2, ..., but that of record {walk.misplaced} differs")
    return new_tuple(ValidBatch, (header, data, walk, body, unpack))


def _too_short(data: bytes) -> KafkaError:
    size = len(data)
    if size == 0:
        return _invalid("the partition has no record batch; send exactly one")
    if size >= LOG_OVERHEAD + 5 and peek(data)[2] < MAGIC_V2:
        return _invalid(_OLD_FORMAT)
    return _invalid(f"a record batch of {size} bytes is shorter than its header")


def _check_alone(data: bytes, header: BatchHeader) -> None:
    """Raise KafkaError unless `data` is one whole batch of magic 2, alone or followed by part of another."""
    size = len(data)
    if header.magic != MAGIC_V2:
        if 0 <= header.magic < MAGIC_V2:
            raise _invalid(_OLD_FORMAT)
        raise _corrupt(f"record batches need magic 2, not {header.magic}")
    if header.size < HEADER_SIZE:
        raise _corrupt(f"a record batch declares a size of {header.size} bytes, but its header alone has {HEADER_SIZE}")
    if header.size > size:
        raise _invalid(f"a record batch declares a size of {header.size} bytes, but only {size} bytes were sent")
    rest = size - header.size
    # the rules of Kafka's ByteBufferLogInputStream.nextBatchSize
    if rest < LOG_OVERHEAD:
        return
    length = _LENGTH.unpack_from(data, header.size + _LENGTH_POSITION)[0]
    if length < _MIN_LENGTH:
        raise _corrupt(f"the batch is followed by another with a length of {length}; the minimum is {_MIN_LENGTH}")
    if rest < _UP_TO_MAGIC:
        return
    if peek(data, header.size)[2] not in (0, 1, MAGIC_V2):
        raise _corrupt("the record batch is followed by bytes that are not a record batch")
    if rest >= length + LOG_OVERHEAD:
        raise _invalid("a partition takes exactly one record batch in a request, not several")


def unpacked_at_once(data: bytes, max_size: int) -> bytes:
    """Decompress the records of the batch `data` in one go.

    Raises UnpackedTooLargeError over `max_size` bytes, KafkaError for malformed data.
    """
    codec = data[_CODEC_POSITION] & CODEC_MASK
    if codec > Codec.ZSTD:
        raise _unreadable(f"compression type {codec} does not exist")
    return decompress(Codec(codec), memoryview(data)[HEADER_SIZE:], max_size)


def is_compressed(data: bytes) -> bool:
    return len(data) > HEADER_SIZE and data[_CODEC_POSITION] & CODEC_MASK != 0


def _walk_on(walk: RecordWalk, data: bytes, position: int, count: int) -> None:
    """Walk to the end of `data`. Raises KafkaError(invalid_record) unless the records end there."""
    while position >= 0 and walk.left:
        position = walk.walk(data, position, SLICE, True, False)
    if position < 0:
        raise _invalid(_REASONS[position])
    if position != len(data):
        raise _invalid(f"the declared {count} records end {len(data) - position} bytes before their batch ends")


def walk_in_pieces(walk: RecordWalk, pieces: Iterable[bytes], *, finds_one: bool = False) -> bool:
    """Walk over records in pieces; with `finds_one`, stop after the first one with a timestamp above `newer_than`.

    Return True if one was found. Raises KafkaError(invalid_record) unless the records and the pieces end together.
    """
    return any(finds_one and walk.delta_of_largest >= 0 for _ in _steps(walk, pieces, SLICE, finds_one))


def each_record(header: BatchHeader, pieces: Iterable[bytes]) -> Iterator[tuple[int, bool, int]]:
    """Yield every record's index in the batch, whether it has a key, and its timestamp.

    Raises KafkaError(invalid_record) at the first invalid record. Slow, because it runs interpreted code per record:
    use it only for records that will be refused.
    """
    walk = RecordWalk(header.record_count, header.base_timestamp, NO_TIMESTAMP, _ANY_DELTA)
    place = keyless = 0
    for _ in _steps(walk, pieces, 1, False):
        if header.record_count - walk.left > place:
            yield place, walk.keyless == keyless, walk.timestamp
            place += 1
            keyless = walk.keyless


def _steps(walk: RecordWalk, pieces: Iterable[bytes], slice_size: int, finds_one: bool) -> Iterator[None]:
    data = b""
    position = 0
    for piece in pieces:
        # the previous piece may end inside a number, which continues in this one
        if position < len(data):
            data = data[position:] + piece
            position = 0
        else:
            position -= len(data)
            data = piece
        while walk.left and position < len(data):
            before, left = position, walk.left
            position = walk.walk(data, position, slice_size, False, finds_one)
            if position < 0:
                raise _invalid(_REASONS[position])
            yield
            if position == before and walk.left == left:
                break
        if not walk.left and position < len(data):
            break
    while walk.left:
        position = walk.walk(data, position, slice_size, True, finds_one)
        if position < 0 or position > len(data):
            raise _invalid(_REASONS[min(position, OUTSIDE)])
        yield
    if position != len(data):
        raise _invalid("the declared records do not end where the batch ends")


_REASONS: Final = {
    OUTSIDE: "a record ends outside its batch",
    TOO_SHORT: f"a record has fewer than {MIN_RECORD} bytes",
    LONG_NUMBER: "a 32-bit varint has more than 5 bytes, or a 64-bit one more than 10",
    HEADER_COUNT: "a record declares more headers than fit into its bytes",
    NAMELESS_HEADER: "a header has no name",
    NOT_FILLED: "a record's length does not match its fields",
}
