"""Records by timestamp, to the record: the indexes lead to one batch, and that one is opened (ListOffsets)."""

from collections.abc import Iterator, Sequence

from headrace.storage.segment import Segment
from headrace.wire.batch import BatchHeader
from headrace.wire.records import Record, iter_records


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
            for record in _records(segment, position, header):
                if record.timestamp >= timestamp and record.offset >= log_start_offset:
                    return record.timestamp, record.offset, header.partition_leader_epoch
    return None


def max_timestamp(segments: Sequence[Segment]) -> tuple[int, int] | None:
    """The largest timestamp and the offset of the first record that has it."""
    segment = max(segments, key=lambda candidate: candidate.max_timestamp)
    if segment.max_timestamp < 0:
        return None
    for position, header in segment.headers(segment.index.lookup(segment.offset_of_max_timestamp)):
        if header.max_timestamp == segment.max_timestamp:
            for record in _records(segment, position, header):
                if record.timestamp == header.max_timestamp:
                    return record.timestamp, record.offset
    return None


def _records(segment: Segment, position: int, header: BatchHeader) -> Iterator[Record]:
    return iter_records(segment.file.pread(header.size, position))
