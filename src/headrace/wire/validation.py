"""Whether a batch that a client wants appended is one: header, checksum, and the chain of its records.

The records are not decoded. Their lengths are followed from one to the next to see that there are as many as the
header counts and that they fill the batch, and runs of records of one length are skipped in a single comparison.
"""

from operator import length_hint
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
from headrace.wire.record_sizes import MIN_RECORD, RECORD_SIZES, equal_run
from headrace.wire.records import get_varint

MAX_CHECKED_BODY: Final = 8 * 1024 * 1024
"""Bytes a compressed batch may unpack to and still be checked inside; a larger one is taken as it is, unread."""
_FIRST_REACH: Final = 64
"""Records compared at once at first; four times as many whenever all of them were equal."""
_WORTH_IT: Final = 16
"""With fewer equal ones than this in a comparison, single steps are faster."""
_FIRST_WALK: Final = 16
"""Single steps after a comparison that was not worth it; twice as many after each further one."""
_LONGEST_WALK: Final = 256
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
    size = len(data)
    if size < HEADER_SIZE:
        raise _too_short(data)
    header = parse_header(data)
    # taken apart once: a field of a named tuple costs several times a local
    base_offset, length, _, magic, crc, attributes, last_delta, _, _, producer_id, epoch, sequence, count = header
    if magic != MAGIC_V2 or length + LOG_OVERHEAD != size:
        raise _not_one_batch(header, size)
    if size > max_message_bytes:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"the record batch has {size} bytes; max.message.bytes of the topic allows {max_message_bytes}",
        )
    if crc32c(memoryview(data)[CRC_START:]) != crc:
        raise KafkaError(ErrorCode.corrupt_message, "the checksum of the record batch is wrong")
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
        _check_chain(data, HEADER_SIZE, count)
    else:
        body = _unpacked(codec, data)
        if body is not None:
            _check_chain(body, 0, count)
    return header


def _too_short(data: bytes) -> KafkaError:
    size = len(data)
    if size == 0:
        return _invalid("the partition has no record batch; send exactly one")
    if size >= LOG_OVERHEAD + 5 and peek(data)[2] < MAGIC_V2:
        return _invalid(_OLD_FORMAT)
    return _invalid(f"a record batch of {size} bytes is shorter than its header")


def _not_one_batch(header: BatchHeader, size: int) -> KafkaError:
    """Why `size` bytes are no batch of this format, whole, and alone."""
    if header.magic != MAGIC_V2:
        if 0 <= header.magic < MAGIC_V2:
            return _invalid(_OLD_FORMAT)
        return KafkaError(ErrorCode.corrupt_message, f"record batches need magic 2, not {header.magic}")
    if header.size < HEADER_SIZE:
        return KafkaError(
            ErrorCode.corrupt_message, f"a record batch says it has {header.size} bytes, less than its header"
        )
    if header.size < size:
        return _invalid("a partition takes exactly one record batch in a request, not several")
    return _invalid(f"a record batch says it has {header.size} bytes where {size} were sent")


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

    Raises IndexError or KafkaError(invalid_record) when a record ends outside `data`. As many records as may follow
    with the length of the first are compared with it at once, so that batches of equal records cost next to nothing;
    where lengths differ some are read one by one before it is tried again.
    """
    left = count
    # equal records get one byte longer with the 64th, where the varint of their offset delta does
    reach = _FIRST_REACH
    walk = _FIRST_WALK
    while left:
        size = RECORD_SIZES[data[position]][data[position + 1]]
        if size is None:
            position += _long_size(data, position)
            left -= 1
            continue
        run = min(reach, left)
        same = equal_run(data, position, size, run)
        position += same * size
        left -= same
        if same == run:
            reach = 4 * run
            continue
        reach = _FIRST_REACH
        if same >= _WORTH_IT:
            walk = _FIRST_WALK
            continue
        steps = iter(range(min(walk, left)))
        left -= length_hint(steps)
        try:
            for _ in steps:
                # None cannot be added, and costs nothing where there is none
                position += RECORD_SIZES[data[position]][data[position + 1]]  # type: ignore[operator]
        except TypeError:
            position += _long_size(data, position)
        left += length_hint(steps)
        walk = min(2 * walk, _LONGEST_WALK)
    if position > len(data):
        raise _invalid("a record ends outside its batch")
    return position


def _long_size(data: bytes, position: int) -> int:
    """The size of a record that RECORD_SIZES does not tell."""
    try:
        length, behind = get_varint(data, position)
    except KafkaError as error:
        raise _invalid(f"the length of a record: {error}") from error
    size = behind - position + length
    if size < MIN_RECORD:
        raise _invalid("a record is shorter than a record can be")
    return size
