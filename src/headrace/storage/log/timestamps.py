"""Looks up exact offsets by timestamp (ListOffsets): the indexes select the only batch to decompress.

Also looks up timestamps by offset, estimated from batch headers. Batches are decompressed and walked in pieces. All
functions may run in a thread while another thread appends.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from headrace.errors import KafkaError
from headrace.storage.log.segment import Segment, damage_error
from headrace.wire.batch import BatchHeader, batch_crc_ok
from headrace.wire.record_checks import RecordWalk
from headrace.wire.validation import unpacked, walk_in_pieces

_BEFORE_ALL: Final = -(1 << 63)


def offset_for_timestamp(
    segments: Sequence[Segment], timestamp: int, log_start_offset: int
) -> tuple[int, int, int] | None:
    """Return the timestamp, offset and leader epoch of the first record not older than `timestamp`, or None."""
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


def timestamp_at(segments: Sequence[Segment], offset: int) -> int | None:
    """Return the timestamp of the first record from `offset` on; None if no such record or timestamp exists.

    Needs one index lookup and one header read. Within a batch, timestamps are interpolated. Raises OSError, and
    KafkaError as `Segment.headers` does.
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
    """Return the largest timestamp and the offset of the first record that has it, or None."""
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
    """Return the timestamp and offset of a batch's first record from `from_offset` on that is newer than `newer_than`.

    Return None without such a record, or if the records are unreadable: earlier Headrace versions stored these, and
    consumers should begin after them. Raises OSError, and KafkaError(corrupt_message) if the checksum does not match.
    """
    batch = segment.file.pread(header.size, position)
    if len(batch) < header.size or not batch_crc_ok(batch, 0, header.size):
        raise damage_error(segment.path, position, header.base_offset)
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
