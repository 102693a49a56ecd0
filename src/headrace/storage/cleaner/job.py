"""The requests to a cleaner process, and its replies.

A separate module, so that the broker does not load the cleaner's modules.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class SourceSegment(NamedTuple):
    """A segment to clean; sizes in bytes."""

    base_offset: int
    size: int
    index_size: int
    time_index_size: int


class LastRecord(NamedTuple):
    """What to keep for an active producer: its last data batch or, if the offset is -1, a marker with its epoch."""

    last_data_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningJob:
    """One pass over a log; times in ms, sizes in bytes.

    `segments` end before `first_uncleanable_offset`, the base offset of the next one. `transaction_segments` are the
    base offsets of all segments, because a transaction may end in a later one.
    """

    directory: Path
    segments: Sequence[SourceSegment]
    transaction_segments: Sequence[int]
    first_dirty_offset: int
    first_uncleanable_offset: int
    producers: Mapping[int, LastRecord]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    map_bytes: float
    io_buffer_bytes: int
    bytes_per_second: float


class CleanedGroup(NamedTuple):
    """Segments copied into one `.cleaned` segment, which has the base offset of the first."""

    base_offsets: tuple[int, ...]
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int


class CleanedLog(NamedTuple):
    """The offset before which the log is clean, and the errors of unreadable batches by base offset."""

    end_offset: int
    unreadable: Mapping[int, str]
