"""Selects the segments to delete: those expired by time or size, and those below the log start offset."""

from collections.abc import Sequence

from headrace.storage.log.config import LogConfig
from headrace.storage.log.segment import Segment


def expired_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    log_end_offset: int,
) -> list[Segment]:
    """Return the segments to delete, oldest first.

    Segments with records at or above `high_watermark`, and an empty active segment, are kept. Time and size apply only
    if `cleanup.policy` contains `delete`; segments before the log start offset always expire.
    """
    ends = [segment.base_offset for segment in segments[1:]] + [log_end_offset]
    count = sum(1 for end in ends[:-1] if end <= min(log_start_offset, high_watermark))
    if config.deletes:
        droppable = sum(1 for end in ends if end <= high_watermark)
        if droppable == len(segments) and not segments[-1].size:
            droppable -= 1
        if config.retention_bytes >= 0:
            size = sum(segment.size for segment in segments[count:])
            while count < droppable and size - segments[count].size >= config.retention_bytes:
                size -= segments[count].size
                count += 1
        if config.retention_ms >= 0:
            while count < droppable and now_ms - segments[count].largest_timestamp > config.retention_ms:
                count += 1
    return list(segments[:count])
