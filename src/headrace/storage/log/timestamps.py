"""Records by timestamp, to the record: the indexes lead to one batch, and that one is opened (ListOffsets).

And the other way round: the time of a record by its offset, estimated from the header of its batch. Batches are
unpacked and walked over piece by piece. All of it may run in a thread while others append.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from headrace.errors import KafkaError
from headrace.storage.log.segment import Segment, damaged
from headrace.wire.batch import BatchHeader, batch_crc_ok
from headrace.wire.record_checks import RecordWalk
from headrace.wire.validation import unpacked, walk_in_pieces

_BEFORE_ALL: Final = -(1 << 63)


def offset_for_timestamp(
    segments: Sequence[Segment], timestamp: int, log_start_offset: int
) -> tuple[int, int, int] | None:
    """Timestamp, offset and leader epoch of the first record from `log_start_offset` on not older than `timestamp`."""
    for segment in segments:
        if segment.max_timestamp < timestamp:
            continue
        start = max(segment.time_index.lookup(timestamp), log_start_offset)
        for position, header in segment.headers(segment.index.lookup(start)):
            if header.max_timestamp < timestamp or header.last_offset < log_start_offset:
                continue
            found = _first_newer(segment, position, header, timestamp - 1, log_start_offset)
            if found is not None:
                return *found, header.partition_leader_epoch
    return None


def time_of(segments: Sequence[Segment], offset: int) -> int | None:
    """The timestamp of the record at `offset`, or of the next one that there is; None where there is none, or it has
    no timestamp.

    One look-up in an index and one read of a header, which a thread may do while others append. Between the first and
    the last record of a batch the time is estimated: batches are not opened. Raises OSError; KafkaError as
    `Segment.headers` does.
    """
    first = max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0)
    for segment in segments[first:]:
        found = segment.find(offset)
        if found is not None:
            return _time_in(found[1], offset)
    return None


def _time_in(header: BatchHeader, offset: int) -> int | None:
    first, last = header.base_timestamp, header.max_timestamp
    if last < 0:
        return None
    if header.is_log_append_time or first < 0:
        return last
    place = max(offset - header.base_offset, 0)
    return first + (last - first) * place // max(header.last_offset_delta, 1)


def max_timestamp(segments: Sequence[Segment]) -> tuple[int, int] | None:
    """The largest timestamp and the offset of the first record that has it."""
    segment = max(segments, key=lambda candidate: candidate.max_timestamp)
    for position, header in segment.headers(segment.index.lookup(segment.offset_of_max_timestamp)):
        if header.max_timestamp == segment.max_timestamp:
            found = _first_newer(segment, position, header, header.max_timestamp - 1, header.base_offset)
            if found is not None:
                return found
    return None


def _first_newer(
    segment: Segment, position: int, header: BatchHeader, newer_than: int, from_offset: int
) -> tuple[int, int] | None:
    """Timestamp and offset of the first record from `from_offset` on that is newer than `newer_than`, in one batch.

    None as well for a batch whose records cannot be read, which older versions stored: consumers do better to begin
    behind it. Raises KafkaError(corrupt_message) for one that has changed on the disk; OSError.
    """
    batch = segment.file.pread(header.size, position)
    if len(batch) < header.size or not batch_crc_ok(batch, 0, header.size):
        raise damaged(segment.path, position, header.base_offset)
    if header.is_log_append_time:
        newer_than = _BEFORE_ALL
    from_delta = max(0, from_offset - header.base_offset)
    walk = RecordWalk(header.record_count, header.base_timestamp, newer_than, from_delta)
    try:
        if not walk_in_pieces(walk, unpacked(header.codec, memoryview(batch)), finds_one=True):
            return None
    except KafkaError:
        return None
    timestamp = header.max_timestamp if header.is_log_append_time else walk.largest
    return timestamp, header.base_offset + walk.delta_of_largest
