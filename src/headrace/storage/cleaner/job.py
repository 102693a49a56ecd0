"""What a broker asks of a cleaner process, and what it is answered.

Apart from the cleaner, so that a broker need not load what that is made of.
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
    """What must survive of an active producer: its last batch of data, or (offset -1) a marker of its epoch."""

    last_data_offset: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningJob:
    """One pass over a log; times in ms, sizes in bytes.

    `segments` are those before `first_uncleanable_offset`, the base offset of the one after them.
    `transaction_segments` are the base offsets of all segments, whose transaction indexes may tell of these.
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
    """Segments that were copied into one `.cleaned` segment named by the first of them."""

    base_offsets: tuple[int, ...]
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int


class CleanedLog(NamedTuple):
    """Where the clean part of a log ends, and batches that stay because they cannot be read: offset and reason."""

    end_offset: int
    unreadable: Mapping[int, str]
