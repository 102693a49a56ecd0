"""The ordered segments of one log; finds the position of an offset in them."""

import logging
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.segment import Segment
from headrace.wire.batch import BatchHeader

_CACHED_POSITIONS: Final = 64

log = logging.getLogger(__name__)


class Segments:
    """At least one segment, ascending by base offset; the last one is active.

    The list `ordered` is replaced, never changed, so other threads may iterate over it. The positions of sequential
    readers are cached, which saves an index lookup and a walk over headers per read.
    """

    __slots__ = ("_bases", "_positions", "_tail", "ordered")

    def __init__(self, ordered: list[Segment]) -> None:
        self._positions: dict[int, tuple[Segment, int]] = {}
        self._tail: tuple[int, Segment, int] | None = None
        self.replace(ordered)

    def replace(self, ordered: list[Segment]) -> None:
        self.ordered = ordered
        self._bases = [segment.base_offset for segment in ordered]
        self.forget_positions()

    @property
    def first_offset(self) -> int:
        return self._bases[0]

    @property
    def active(self) -> Segment:
        """The segment that receives appends."""
        return self.ordered[-1]

    @property
    def active_base_offset(self) -> int:
        """The base offset of the active segment; it changes when the log rolls."""
        return self._bases[-1]

    @property
    def size(self) -> int:
        """Bytes of all log files, without indexes."""
        return sum(segment.size for segment in self.ordered)

    def floor(self, offset: int) -> int:
        """Return the index of the segment for `offset`; 0 for offsets before the first segment."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def locate(self, offset: int) -> tuple[Segment, int] | None:
        """Return the segment and position of the first batch that ends at or after `offset`, or None."""
        tail = self._tail
        if tail is not None and tail[0] == offset:
            return tail[1], tail[2]
        known = self._positions.get(offset)
        if known is not None:
            return known
        # compaction can leave a gap at the end of a segment: then the batch is in a later one
        for segment in self.ordered[self.floor(offset) :]:
            found = segment.find(offset)
            if found is not None:
                self.remember(offset, segment, found[0])
                return segment, found[0]
        return None

    def appended(self, offset: int, segment: Segment, position: int) -> None:
        """Remember the position of the newest batches, where caught-up readers continue."""
        self._tail = offset, segment, position

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        """Cache the position of the first batch that ends at or after `offset`."""
        if len(self._positions) >= _CACHED_POSITIONS:
            self._positions.clear()
        self._positions[offset] = segment, position

    def forget_positions(self) -> None:
        self._positions.clear()
        self._tail = None

    def headers(self, from_offset: int) -> Iterator[BatchHeader]:
        """Yield the header of every batch from the one that contains `from_offset` on, like `batches`."""
        for _, _, header in self.batches(from_offset):
            yield header

    def batches(self, from_offset: int) -> Iterator[tuple[Segment, int, BatchHeader]]:
        """Yield the segment, position and header of every batch from the one that contains `from_offset` on.

        After damage, continue with the next segment. Raises OSError, and KafkaError(kafka_storage_error) for a damaged
        offset index, which would hide undamaged batches.
        """
        for segment in self.ordered[self.floor(from_offset) :]:
            try:
                found = segment.find(from_offset)
                if found is not None:
                    for position, header in segment.headers(found[0]):
                        yield segment, position, header
            except CorruptIndexError as error:
                raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
            except KafkaError as error:
                log.warning("The scan of batch headers skips the rest of %s, which is damaged: %s", segment.path, error)

    def headers_before(self, offset: int, index_entries: int) -> Iterator[BatchHeader]:
        """Yield the headers of the batches before `offset`, beginning `index_entries` index entries earlier.

        Raises the errors of `Segment.find`.
        """
        parts = []
        last = self.ordered[self.floor(offset)]
        for segment in reversed(self.ordered[: self.floor(offset) + 1]):
            found = segment.find(offset) if segment is last else None
            end = segment.size if found is None else found[0]
            start, index_entries = segment.index.steps_back(end, index_entries)
            parts.append((segment, start, end))
            if not index_entries:
                break
        for segment, start, end in reversed(parts):
            for position, header in segment.headers(start):
                if position >= end:
                    break
                yield header

    def aborted_transactions(self, offset: int, part: FileSlice, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with batches in `part`, which was read for `offset`."""
        segments = self.ordered[self.floor(offset) :]
        if not any(segment.txn_index.exists for segment in segments):
            return []
        holder = self.locate(offset)
        upper_bound = end_offset if holder is None else self._end_of(holder[0], offset, part, end_offset)
        aborted: list[AbortedTransaction] = []
        for segment in segments:
            found, is_complete = segment.txn_index.aborted_between(offset, upper_bound)
            aborted += found
            if is_complete:
                break
        return aborted

    def _end_of(self, segment: Segment, offset: int, part: FileSlice, end_offset: int) -> int:
        """Return the offset after the last batch in `part`, which was read for `offset` from `segment`.

        If it is damaged, return a later offset from an index, as Kafka always does: consumers ignore transactions that
        begin after the part, and need those in the undamaged batches.
        """
        end = part.position + part.size
        with suppress(KafkaError):
            found = segment.end_offset_at(end)
            if found > offset:  # no checksum covers the offset of a batch
                return found
        indexed = segment.index.offset_from(end)
        later = (base for base in self._bases if base > segment.base_offset)
        return next(later, end_offset) if indexed is None else indexed
