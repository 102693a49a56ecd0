"""Whether a batch that a client wants appended is one: header, checksum, and its records (`record_checks`)."""

from struct import Struct
from typing import Final

from headrace.errors import ErrorCode, KafkaError
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
from headrace.wire.compression import Codec, UnpackedTooLargeError, decompress
from headrace.wire.record_checks import all_have_keys, check_records

MAX_CHECKED_BODY: Final = 16 * 1024 * 1024
"""Bytes a compressed batch may unpack to and still be checked inside; a larger one is taken as it is, unread."""
_NO_LIMIT: Final = 1 << 31
_LENGTH: Final = Struct(">i")
_LENGTH_POSITION: Final = 8
_CODEC_POSITION: Final = 22
_UP_TO_MAGIC: Final = 17
"""Bytes of a batch up to and with its magic."""
_LEAST_LENGTH: Final = 14
"""The least that the length of a batch of any magic may be."""
_OLD_FORMAT: Final = "message formats v0 and v1 are not supported; send record batches with magic 2"


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, why)


def _corrupt(why: str) -> KafkaError:
    return KafkaError(ErrorCode.corrupt_message, why)


def _unreadable(why: str) -> KafkaError:
    # Kafka's own answer, and the better one: a client would retry after corrupt_message
    return KafkaError(ErrorCode.unknown_server_error, why)


class PreparedBatch(bytes):
    """A batch with what was done ahead of `validate_produced`, which then need not do it."""

    body: bytes | None = None
    """What it unpacks to."""
    is_checked = False
    error: KafkaError | None = None
    """What is wrong with it, if it is checked and anything is."""
    all_have_keys = False
    """Whether it is checked, and each of its records has a key."""


def unpack_ahead(data: bytes, max_size: int) -> PreparedBatch | None:
    """The batch with what it unpacks to; None where that is over `max_size` bytes, or cannot be told."""
    prepared = PreparedBatch(data)
    codec = data[_CODEC_POSITION] & CODEC_MASK if len(data) > HEADER_SIZE else 0
    if codec == 0 or codec > Codec.ZSTD:
        return prepared if len(data) - HEADER_SIZE <= max_size else None
    try:
        prepared.body = decompress(Codec(codec), memoryview(data)[HEADER_SIZE:], max_size)
    except KafkaError:
        return None
    return prepared


def check_ahead(data: bytes) -> PreparedBatch:
    """Do what `validate_produced` will do with `data`, and have it raise what there is to raise."""
    unpacked = unpack_ahead(data, MAX_CHECKED_BODY)
    try:
        header, batch = validate_produced(data if unpacked is None else unpacked, _NO_LIMIT)
        prepared = PreparedBatch(batch)
        body = batch[HEADER_SIZE:] if header.codec == 0 else unpacked and unpacked.body
        prepared.all_have_keys = body is not None and all_have_keys(body, header.record_count)
    except KafkaError as error:
        # without what led to it, which would keep what the batch unpacks to
        return refused_ahead(data, error.with_traceback(None))
    prepared.is_checked = True
    return prepared


def refused_ahead(data: bytes, error: KafkaError) -> PreparedBatch:
    """The batch, of which `validate_produced` will raise `error`."""
    prepared = PreparedBatch(data)
    prepared.error = error
    prepared.is_checked = True
    return prepared


def validate_produced(data: bytes, max_message_bytes: int) -> tuple[BatchHeader, bytes]:
    """The one batch that `data` is, as a client's Produce must send it: its header, and all of it.

    What is behind it and is no batch is cut off, as Kafka does. Raises KafkaError: invalid_record for none, several,
    torn or inconsistent batches and for older message formats, message_too_large over `max_message_bytes`,
    corrupt_message for a wrong checksum, magic or length, unknown_server_error for what cannot be unpacked or a codec
    that does not exist.
    """
    size = len(data)
    if size < HEADER_SIZE:
        raise _too_short(data)
    header = parse_header(data)
    # taken apart once: a field of a named tuple costs several times a local
    base_offset, length, _, magic, crc, attributes, last_delta, _, _, producer_id, epoch, sequence, count = header
    if magic != MAGIC_V2 or length + LOG_OVERHEAD != size:
        _check_alone(data, header)
        size = length + LOG_OVERHEAD
        data = data[:size]
    if size > max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"the record batch has {size} bytes; max.message.bytes of the topic allows {max_message_bytes}",
        )
    prepared = data if type(data) is PreparedBatch else None
    if prepared is not None and prepared.is_checked:
        if prepared.error is not None:
            raise prepared.error
        return header, data
    if crc32c(memoryview(data)[CRC_START:]) != crc:
        raise _corrupt("the checksum of the record batch is wrong")
    if base_offset != 0:
        raise _invalid(f"the base offset of a produced record batch is 0, not {base_offset}")
    if attributes & CONTROL_FLAG:
        raise _invalid("clients may not write control records")
    if count <= 0 or last_delta + 1 != count:
        raise _invalid(f"the batch counts {count} records with a last offset delta of {last_delta}")
    if producer_id >= 0 and (sequence < 0 or epoch < 0):
        raise _invalid("a batch with a producer id needs an epoch and a sequence")
    codec = attributes & CODEC_MASK
    if codec == 0:
        _check_records(data, HEADER_SIZE, count)
    else:
        body = prepared.body if prepared is not None else None
        if body is None:
            body = _unpacked(codec, data)
        if body is not None:
            _check_records(body, 0, count)
    return header, data


def _too_short(data: bytes) -> KafkaError:
    size = len(data)
    if size == 0:
        return _invalid("the partition has no record batch; send exactly one")
    if size >= LOG_OVERHEAD + 5 and peek(data)[2] < MAGIC_V2:
        return _invalid(_OLD_FORMAT)
    return _invalid(f"a record batch of {size} bytes is shorter than its header")


def _check_alone(data: bytes, header: BatchHeader) -> None:
    """Raises KafkaError where `data` is no batch of this format, whole, with nothing behind it that begins another."""
    size = len(data)
    if header.magic != MAGIC_V2:
        if 0 <= header.magic < MAGIC_V2:
            raise _invalid(_OLD_FORMAT)
        raise _corrupt(f"record batches need magic 2, not {header.magic}")
    if header.size < HEADER_SIZE:
        raise _corrupt(f"a record batch says it has {header.size} bytes, less than its header")
    if header.size > size:
        raise _invalid(f"a record batch says it has {header.size} bytes where {size} were sent")
    rest = size - header.size
    # What Kafka's reader of batches finds there: ByteBufferLogInputStream.nextBatchSize
    if rest < LOG_OVERHEAD:
        return
    length = _LENGTH.unpack_from(data, header.size + _LENGTH_POSITION)[0]
    if length < _LEAST_LENGTH:
        raise _corrupt(f"behind the record batch is another that says it has {length} bytes")
    if rest < _UP_TO_MAGIC:
        return
    if peek(data, header.size)[2] not in (0, 1, MAGIC_V2):
        raise _corrupt("behind the record batch is something else")
    if rest >= length + LOG_OVERHEAD:
        raise _invalid("a partition takes exactly one record batch in a request, not several")


def _unpacked(codec: int, data: bytes) -> bytes | None:
    """What the batch unpacks to; None if that is too large to be looked at."""
    if codec > Codec.ZSTD:
        raise _unreadable(f"compression type {codec} does not exist")
    try:
        return decompress(Codec(codec), memoryview(data)[HEADER_SIZE:], MAX_CHECKED_BODY)
    except UnpackedTooLargeError:
        return None
    except KafkaError as error:
        raise _unreadable(str(error)) from error


def _check_records(body: bytes, start: int, count: int) -> None:
    end = check_records(body, start, count)
    if end != len(body):
        raise _invalid(f"the {count} records counted take {end - start} of {len(body) - start} bytes")
