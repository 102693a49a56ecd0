"""Whether a batch that a client wants appended is one: header, checksum, and the chain of its records.

The records are not decoded. Their lengths are followed from one to the next to see that there are as many as the
header counts and that they fill the batch, and runs of records of one length are skipped in a single comparison.
"""

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

MAX_CHECKED_BODY: Final = 8 * 1024 * 1024
"""Bytes a compressed batch may unpack to and still be checked inside; a larger one is taken as it is, unread."""
_MIN_RECORD: Final = 7
_FIRST_REACH: Final = 64
"""Records compared at once at first; four times as many whenever all of them were equal."""
_OLD_FORMAT: Final = "message formats v0 and v1 are not supported; send record batches with magic 2"


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, why)


def _unreadable(why: str) -> KafkaError:
    # Kafka's own answer, and the better one: a client would retry after corrupt_message
    return KafkaError(ErrorCode.unknown_server_error, why)


def validate_produced(data: bytes, max_message_bytes: int) -> BatchHeader:
    """The header of the one batch that `data` is, as a client's Produce must send it.

    Raises KafkaError: invalid_record for none, several, torn or inconsistent batches and for older message formats,
    message_too_large over `max_message_bytes`, corrupt_message for a wrong checksum, magic or length,
    unknown_server_error for what cannot be unpacked or a codec that does not exist.
    """
    header = _single_batch(data)
    size = len(data)
    if size > max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"the record batch has {size} bytes; max.message.bytes of the topic allows {max_message_bytes}",
        )
    if crc32c(memoryview(data)[CRC_START:]) != header.crc:
        raise KafkaError(ErrorCode.corrupt_message, "the checksum of the record batch is wrong")
    if header.base_offset != 0:
        raise _invalid(f"the base offset of a produced record batch is 0, not {header.base_offset}")
    if header.attributes & CONTROL_FLAG:
        raise _invalid("clients may not write control records")
    count = header.record_count
    if count <= 0 or header.last_offset_delta + 1 != count:
        raise _invalid(f"the batch counts {count} records with a last offset delta of {header.last_offset_delta}")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise _invalid("a batch with a producer id needs an epoch and a sequence")
    codec = header.attributes & CODEC_MASK
    if codec == 0:
        _check_chain(data, HEADER_SIZE, count)
    else:
        body = _unpacked(codec, data)
        if body is not None:
            _check_chain(body, 0, count)
    return header


def _single_batch(data: bytes) -> BatchHeader:
    """The header of the batch, which is of this format, whole, and alone."""
    size = len(data)
    if size < HEADER_SIZE:
        if size == 0:
            raise _invalid("the partition has no record batch; send exactly one")
        if size >= LOG_OVERHEAD + 5 and peek(data)[2] < MAGIC_V2:
            raise _invalid(_OLD_FORMAT)
        raise _invalid(f"a record batch of {size} bytes is shorter than its header")
    header = parse_header(data)
    if header.magic != MAGIC_V2:
        if 0 <= header.magic < MAGIC_V2:
            raise _invalid(_OLD_FORMAT)
        raise KafkaError(ErrorCode.corrupt_message, f"record batches need magic 2, not {header.magic}")
    if header.batch_length + LOG_OVERHEAD != size:
        if header.size < HEADER_SIZE:
            raise KafkaError(
                ErrorCode.corrupt_message, f"a record batch says it has {header.size} bytes, less than its header"
            )
        if header.size < size:
            raise _invalid("a partition takes exactly one record batch in a request, not several")
        raise _invalid(f"a record batch says it has {header.size} bytes where {size} were sent")
    return header


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


def _check_chain(body: bytes, start: int, count: int) -> None:
    try:
        end = follow_chain(body, start, count)
    except IndexError:
        raise _invalid("a record ends outside its batch") from None
    if end != len(body):
        raise _invalid(f"the {count} records counted take {end - start} of {len(body) - start} bytes")


def follow_chain(data: bytes, position: int, count: int) -> int:
    """Position behind the `count`-th of the records that begin at `position`.

    Raises IndexError or KafkaError(invalid_record) when a record ends outside `data`. Where two records have one
    length, as many as may follow with that length are compared at once, so that batches of equal records cost next
    to nothing.
    """
    left = count
    stride = 0
    reach = _FIRST_REACH
    while left:
        first = data[position]
        if first < 0x80:
            step = 1 + (first >> 1)
        elif (second := data[position + 1]) < 0x80:
            step = 2 + ((first & 0x7F | second << 7) >> 1)
        else:
            step = _long_step(data, position)
        if step != stride:
            if first & 1 or step < _MIN_RECORD:
                raise _invalid("a record is shorter than a record can be")
            stride = step
            position += step
            left -= 1
            continue
        run = min(reach, left)
        end = position + run * step
        same = _leading(data[position:end:step])
        if first >= 0x80:
            same = min(same, _leading(data[position + 1 : end : step]))
            if data[position + 1] >= 0x80:
                same = 1  # a third byte of the length was not compared
        position += same * step
        left -= same
        reach = reach * 4 if same == run else _FIRST_REACH
    if position > len(data):
        raise _invalid("a record ends outside its batch")
    return position


def _leading(column: bytes) -> int:
    """How many bytes at the start of `column` are the same."""
    return len(column) - len(column.lstrip(column[:1]))


def _long_step(data: bytes, position: int) -> int:
    value = shift = width = 0
    while True:
        byte = data[position + width]
        width += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return width + (value >> 1)
        shift += 7
        if width == 5:
            raise _invalid("the length of a record is longer than five bytes")
