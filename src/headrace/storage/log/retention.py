"""Selects the segments to delete: those expired by time or size, and those below the log start offset.

Their files are removed later.
"""

from collections import deque
from collections.abc import Sequence
from pathlib import Path

from headrace.storage.log.config import LogConfig
from headrace.storage.log.segment import Segment
from headrace.storage.log.state import LogState


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


class DeletedFiles:
    """The files of dropped segments, which are removed after `file.delete.delay.ms`. False if it is empty."""

    __slots__ = ("_queue", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._queue: deque[tuple[int, list[str]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, files: Sequence[Path], now_ms: int) -> None:
        """Schedule files in the log's directory for removal."""
        self._queue.append((now_ms + self._state.config.file_delete_delay_ms, [path.name for path in files]))

    def clear(self) -> None:
        """Forget the files, which are in a directory that the log no longer uses."""
        self._queue.clear()

    def remove_due(self, now_ms: int) -> None:
        """Remove the files that are due. Blocks on the disk, and may run in another thread. Raises OSError."""
        for _ in range(len(self._queue)):
            try:
                due, names = self._queue.popleft()
            except IndexError:  # another thread has emptied it
                return
            if due > now_ms:
                self._queue.appendleft((due, names))
                return
            for name in names:
                (self._state.directory / name).unlink(missing_ok=True)
