"""Check the batches that a leader sent, and join them into runs that are appended with one write. Pure.

A follower accepts what producers may not send: gaps between batches and batches without records, both from compaction,
and control batches. Neither records nor sequence numbers are checked: the leader has done that.
"""

from typing import Final, NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.types import new_tuple
from headrace.wire.batch import (
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    BatchHeader,
    parse_header,
)
from headrace.wire.checksum import crc32c

_MIN_LENGTH: Final = HEADER_SIZE - LOG_OVERHEAD


class PlacedBatch(NamedTuple):
    """A batch of a reply, from byte `start` to `end`."""

    header: BatchHeader
    start: int
    end: int


class Run(NamedTuple):
    """Consecutive batches of one leader epoch. `offset_of_max_timestamp` as in `Log.append`.

    `of_producers` are those with a producer id, which change the state of producers.
    """

    epoch: int
    batches: list[PlacedBatch]
    of_producers: list[PlacedBatch]
    max_timestamp: int
    offset_of_max_timestamp: int


class UnexpectedOffsetError(Exception):
    """The leader sent a batch that begins before the end of the follower's log."""

    def __init__(self, first_offset: int, last_offset: int, expected: int) -> None:
        super().__init__(f"the leader sent offsets {first_offset} to {last_offset}, but the log ends at {expected}")
        self.first_offset = first_offset
        self.last_offset = last_offset


def runs_of(records: memoryview, next_offset: int, leader_epoch: int) -> list[Run]:
    """Return the whole batches in `records`, which must begin at `next_offset` or after it, in ascending order.

    An incomplete last batch is ignored, as are batches with a later epoch than `leader_epoch`, the epoch of the
    fetch: the follower must receive the later epoch first. Raises UnexpectedOffsetError, and KafkaError:
    corrupt_message for a wrong checksum or header, unsupported_for_message_format for v0 and v1.
    """
    position, size = 0, len(records)
    runs: list[Run] = []
    epoch = -2
    batches: list[PlacedBatch] = []
    of_producers: list[PlacedBatch] = []
    max_timestamp = offset_of_max_timestamp = -1
    while size - position >= HEADER_SIZE:
        header = parse_header(records, position)
        # Unpacked once, because locals are several times faster than fields.
        base_offset, length, batch_epoch, magic, crc, _, last_delta, _, timestamp, producer_id, _, _, _ = header
        end = position + LOG_OVERHEAD + length
        if magic != MAGIC_V2 or length < _MIN_LENGTH or last_delta < 0:
            raise _invalid(header)
        if end > size or batch_epoch > leader_epoch:
            break
        if crc32c(records[position + CRC_START : end]) != crc:
            raise KafkaError(
                ErrorCode.corrupt_message, f"the batch at offset {base_offset} from the leader has a wrong checksum"
            )
        if base_offset < next_offset:
            raise UnexpectedOffsetError(base_offset, base_offset + last_delta, next_offset)
        if batch_epoch != epoch:
            if batches:
                runs.append(Run(epoch, batches, of_producers, max_timestamp, offset_of_max_timestamp))
            epoch, batches, of_producers = batch_epoch, [], []
            max_timestamp = offset_of_max_timestamp = -1
        placed = new_tuple(PlacedBatch, (header, position, end))
        batches.append(placed)
        if producer_id >= 0:
            of_producers.append(placed)
        next_offset = base_offset + last_delta + 1
        if timestamp > max_timestamp:
            max_timestamp, offset_of_max_timestamp = timestamp, next_offset - 1
        position = end
    if batches:
        runs.append(Run(epoch, batches, of_producers, max_timestamp, offset_of_max_timestamp))
    return runs


def _invalid(header: BatchHeader) -> KafkaError:
    if header.magic in (0, 1):
        return KafkaError(
            ErrorCode.unsupported_for_message_format,
            f"the leader has message format v{header.magic}; only v2 (Kafka 0.11 and later) is supported: copy the"
            " topic to a new one with a client",
        )
    return KafkaError(
        ErrorCode.corrupt_message, f"the leader sent an invalid batch header at offset {header.base_offset}"
    )
