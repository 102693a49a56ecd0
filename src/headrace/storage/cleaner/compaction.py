"""Compacts one log: copies segments without superseded records.

Reads inactive segments and writes `.cleaned` files. Needs no open log, so that it can run in a separate process. The
rules are those of Kafka's log cleaner:
https://kafka.apache.org/documentation/#design_compactionconfig
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.cleaner.cleaned_transactions import CleanedTransactions
from headrace.storage.cleaner.fates import LIVE, MANY_BATCHES, SUPERSEDED, Fates
from headrace.storage.cleaner.job import CleanedGroup, CleaningJob, SourceSegment
from headrace.storage.cleaner.segments_io import CleanedSegment, Throttle, read_batches, remove_cleaned
from headrace.storage.cleaner.spans import RecordSpan, batch_of, empty_batch, only_record, survivors
from headrace.storage.log.indexes.txn_index import AbortedTransaction, TransactionIndex
from headrace.storage.log.segment import MAX_RELATIVE_OFFSET
from headrace.storage.log.segment_files import LOG_SUFFIX, TXN_INDEX_SUFFIX, segment_file
from headrace.types import Buffer, new_tuple
from headrace.wire.batch import DELETE_HORIZON_FLAG, HEADER_SIZE, BatchHeader, parse_header
from headrace.wire.compression import Codec
from headrace.wire.record_checks import MIN_RECORD
from headrace.wire.records import records_of, uncompressed_body

if TYPE_CHECKING:
    from headrace.storage.cleaner.offset_map import OffsetMap
    from headrace.storage.cleaner.plain_offset_map import PlainOffsetMap

_PINNED_BYTES: Final = 4 * 1024 * 1024
_MAX_UNCOMPRESSED: Final = 1024 * 1024 * 1024
"""Maximum size in bytes of a batch after decompression; larger ones are not cleaned."""
_PLAN_BYTES: Final = 1024 * 1024
"""Bytes of batches, with their uncompressed bodies, that are processed together."""


class _Marker(NamedTuple):
    """A control batch: `is_empty` if its record was removed; `is_obsolete` if it may be removed."""

    is_empty: bool
    is_obsolete: bool
    aborted: AbortedTransaction | None


class _Planned(NamedTuple):
    """A batch, with its `marker` if it is a control batch, and its `body` if its records must be judged."""

    header: BatchHeader
    batch: memoryview
    marker: _Marker | None = None
    drops_records: bool = False
    body: Buffer | None = None


class Cleaner:
    """Does one job: call `build_map`, then `clean` with each of `groups()`.

    `check` is called with every read and write, and may raise to end the job. A batch with a valid checksum but
    unreadable records is kept unchanged and added to `unreadable`, so that the rest of the log can be cleaned.
    """

    def __init__(self, job: CleaningJob, check: Callable[[], None] = lambda: None) -> None:
        self._job = job
        self._throttle = Throttle(job.bytes_per_second, check)
        self._aborted = _aborted_in(job.directory, job.transaction_segments)
        self._transactions = CleanedTransactions(self._aborted, job.segments[0].base_offset)
        self.map = self._map_from(job.first_dirty_offset)

    @property
    def end_offset(self) -> int:
        """The offset before which the log is clean after this job; the next job begins there."""
        return self.map.latest_offset + 1

    @property
    def unreadable(self) -> dict[int, str]:
        """The errors of unreadable batches, by base offset."""
        return self.map.unreadable

    def _map_from(self, offset: int) -> "OffsetMap | PlainOffsetMap":
        try:
            from headrace.storage.cleaner.offset_map import OffsetMap as Map
        except ModuleNotFoundError:  # numpy is optional
            from headrace.storage.cleaner.plain_offset_map import PlainOffsetMap as Map  # type: ignore[assignment]
        return Map(offset, max_bytes=self._job.map_bytes, random_bytes=os.urandom)

    def build_map(self) -> None:
        """Find the newest record of every key from the first dirty offset on, until the memory is full.

        Raises OSError, and KafkaError: corrupt_message for a damaged file, kafka_storage_error if not even one batch
        fits into memory.
        """
        self._fill_map()
        self.map.settle()

    def _fill_map(self) -> None:
        job = self._job
        transactions = CleanedTransactions(self._aborted, job.first_dirty_offset)
        read = 0
        for place, segment in enumerate(job.segments):
            ends = (
                job.segments[place + 1].base_offset if place + 1 < len(job.segments) else job.first_uncleanable_offset
            )
            if ends <= job.first_dirty_offset:
                continue
            for header, batch in self._batches(segment):
                if header.last_offset < job.first_dirty_offset:
                    continue
                if header.is_control:
                    transactions.marker(header, _control_key(header, batch))
                elif not transactions.is_aborted(header) and header.record_count:
                    body = self._readable_body(header, batch)
                    if body is not None:
                        if not self._make_room(header):
                            return
                        self.map.add(header, body)
                self.map.skip_to(header.last_offset)
                read += len(batch)
                if read >= _PINNED_BYTES:
                    # a pending body keeps its whole read buffer in memory
                    self.map.process_pending()
                    read = 0
            self.map.skip_to(ends - 1)

    def _readable_body(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """Return the uncompressed records; None if they are unreadable, larger than allowed, or fewer than declared."""
        try:
            body = _body(header, batch)
        except KafkaError as error:
            self.map.unreadable[header.base_offset] = str(error)
            return None
        if header.record_count * MIN_RECORD > len(body):
            # it would reserve memory for records that it does not contain
            self.map.unreadable[header.base_offset] = f"{header.record_count} records cannot fit in {len(body)} bytes"
            return None
        return body

    def _make_room(self, header: BatchHeader) -> bool:
        """Return True if the batch fits. Raises KafkaError(kafka_storage_error) if it does not fit an empty map."""
        if self.map.is_empty:
            # offsets take memory even without records, and a long gap may follow the first dirty offset
            first = max(self._job.first_dirty_offset, header.base_offset)
            unreadable = self.map.unreadable
            self.map = self._map_from(first)
            self.map.unreadable.update(unreadable)
        if self.map.has_room(header.record_count, header.last_offset):
            return True
        if not self.map.is_empty:
            return False
        raise KafkaError(
            ErrorCode.kafka_storage_error,
            f"{header.record_count} records at offset {header.base_offset} do not fit into a cleaner thread's offset"
            f" map of {self._job.map_bytes:.0f} bytes: increase log.cleaner.dedupe.buffer.size",
        )

    def groups(self) -> list[list[SourceSegment]]:
        """Group adjacent segments, up to the end of the map, so that each group fits into one segment."""
        job = self._job
        segments = [segment for segment in job.segments if segment.base_offset < self.end_offset]
        ends = [segment.base_offset for segment in segments[1:]] + [job.first_uncleanable_offset]
        groups: list[list[SourceSegment]] = []
        size = index_size = time_index_size = 0
        for segment, end in zip(segments, ends, strict=True):
            size += segment.size
            index_size += segment.index_size
            time_index_size += segment.time_index_size
            if (
                not groups
                or size > job.segment_bytes
                or index_size > job.segment_index_bytes
                or time_index_size > job.segment_index_bytes
                or end - 1 - groups[-1][0].base_offset > MAX_RELATIVE_OFFSET
            ):
                groups.append([segment])
                _, size, index_size, time_index_size = segment
            else:
                groups[-1].append(segment)
        return groups

    def clean(self, group: Sequence[SourceSegment]) -> CleanedGroup:
        """Write the remaining batches of the segments to `.cleaned` files, and sync them.

        Raises KafkaError(corrupt_message) and OSError. After an error it removes the files.
        """
        writer = CleanedSegment(self._job, group[0].base_offset, self._throttle)
        records_read = 0
        try:
            for segment in group:
                for planned in self._plans(segment):
                    records_read += sum(item.header.record_count for item in planned)
                    self._copy_all(planned, writer)
            writer.finish(segment_file(self._job.directory, group[-1].base_offset, LOG_SUFFIX).stat().st_mtime_ns)
        except BaseException:
            with suppress(OSError):
                remove_cleaned(self._job.directory, group[0].base_offset)
            raise
        return CleanedGroup(
            base_offsets=tuple(segment.base_offset for segment in group),
            bytes_read=sum(segment.size for segment in group),
            bytes_written=writer.size,
            records_read=records_read,
            records_kept=writer.records,
        )

    def _batches(self, segment: SourceSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
        path = segment_file(self._job.directory, segment.base_offset, LOG_SUFFIX)
        return read_batches(path, segment.size, self._job.io_buffer_bytes, self._throttle)

    # -- copying batches -----------------------------------------------------------------------------------------------

    def _plans(self, segment: SourceSegment) -> Iterator[list[_Planned]]:
        """Plan all batches of a segment, in lists of limited size."""
        planned: list[_Planned] = []
        size = 0
        for header, batch in self._batches(segment):
            item = self._plan(header, batch)
            planned.append(item)
            size += len(batch) if item.body is None else len(batch) + len(item.body)
            if size >= _PLAN_BYTES or len(planned) >= MANY_BATCHES:
                yield planned
                planned = []
                size = 0
        if planned:
            yield planned

    def _plan(self, header: BatchHeader, batch: memoryview) -> _Planned:
        """Plan one batch; must be called for all batches in order, because it follows transactions."""
        if header.is_control:
            key = _control_key(header, batch)
            obsolete, aborted = self._transactions.marker(header, key)
            return _Planned(header, batch, marker=_Marker(key is None, obsolete, aborted))
        if self._transactions.is_aborted(header) or not header.record_count:
            return _Planned(header, batch, drops_records=True)
        if header.base_offset < self.map.first_offset:
            return _Planned(header, batch, body=self._readable_body(header, batch))
        return new_tuple(_Planned, (header, batch, None, False, None))

    def _copy_all(self, planned: Sequence[_Planned], writer: CleanedSegment) -> None:
        clean = [(item.header, item.body) for item in planned if item.body is not None]
        judged = iter(self.map.judge([header for header, _ in clean], [body for _, body in clean]) if clean else ())
        for header, batch, marker, drops_records, body in planned:
            fates = None if body is None else next(judged)
            if marker is not None:
                self._copy_control(header, batch, marker, writer)
            elif drops_records:
                self._copy_empty(header, writer)
            elif header.base_offset > self.map.latest_offset or header.base_offset in self.map.unreadable:
                writer.add(header, batch)
            else:
                self._copy_records(header, batch, fates, writer)

    def _copy_control(self, header: BatchHeader, batch: memoryview, marker: _Marker, writer: CleanedSegment) -> None:
        if marker.aborted is not None:
            writer.segment.txn_index.append(marker.aborted)
        horizon = _delete_horizon(header)
        if marker.is_empty or (marker.is_obsolete and horizon is not None and horizon <= self._job.now_ms):
            self._copy_empty(header, writer)
        elif marker.is_obsolete and horizon is None and header.record_count == 1:
            body = uncompressed_body(header, batch, 0)
            self._rebuild(header, body, [only_record(body)], writer, set_horizon=True)
        else:
            writer.add(header, batch)

    def _copy_empty(self, header: BatchHeader, writer: CleanedSegment) -> None:
        """Copy only the header if a producer's state depends on the batch or it ends the cleaned part; else nothing."""
        last = self._job.producers.get(header.producer_id) if header.producer_id >= 0 else None
        if last is None:
            needed = False
        elif last.last_data_offset >= 0:
            needed = header.last_offset == last.last_data_offset
        else:
            needed = header.is_control and header.producer_epoch == last.epoch
        if needed or header.next_offset == self._job.first_uncleanable_offset:
            writer.add(header._replace(record_count=0), empty_batch(header))

    def _copy_records(
        self, header: BatchHeader, batch: memoryview, judged: Fates | None, writer: CleanedSegment
    ) -> None:
        fates = self.map.fates_in(header) if judged is None else judged.fates
        if fates.count(SUPERSEDED) == header.record_count:
            self._copy_empty(header, writer)
            return
        if fates.count(LIVE) == len(fates):
            writer.add(header, batch)
            return
        records = judged or self.map.records_in(header)
        body = uncompressed_body(header, batch, 0, _MAX_UNCOMPRESSED)
        kept = survivors(body, records.fates, records.sizes)
        horizon = _delete_horizon(header)
        if horizon is not None and horizon <= self._job.now_ms:
            kept = [record for record in kept if record.has_value]
        set_horizon = horizon is None and not all(record.has_value for record in kept)
        if not kept:
            self._copy_empty(header, writer)
        elif len(kept) == header.record_count and not set_horizon:
            writer.add(header, batch)
        else:
            self._rebuild(header, body, kept, writer, set_horizon=set_horizon)

    def _rebuild(
        self, header: BatchHeader, body: bytes, kept: Sequence[RecordSpan], writer: CleanedSegment, *, set_horizon: bool
    ) -> None:
        horizon = self._job.now_ms + self._job.delete_retention_ms if set_horizon else None
        batch = batch_of(header, body, kept, delete_horizon_ms=horizon)
        writer.add(parse_header(batch), batch)


def _body(header: BatchHeader, batch: memoryview) -> Buffer:
    """Return the uncompressed records; a view of `batch` if they are not compressed."""
    return batch[HEADER_SIZE:] if header.codec == Codec.NONE else uncompressed_body(header, batch, 0, _MAX_UNCOMPRESSED)


def _control_key(header: BatchHeader, batch: Buffer) -> bytes | None:
    if not header.record_count:
        return None
    first = next(records_of(header, uncompressed_body(header, batch, 0)), None)
    return None if first is None else first.key


def _delete_horizon(header: BatchHeader) -> int | None:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None


def _aborted_in(directory: Path, base_offsets: Sequence[int]) -> list[AbortedTransaction]:
    return [
        transaction
        for base_offset in base_offsets
        for transaction in TransactionIndex(segment_file(directory, base_offset, TXN_INDEX_SUFFIX)).read()
    ]
