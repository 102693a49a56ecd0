"""Compaction of one log: copies segments without the records that have a newer one of the same key.

Reads segments that are not appended to any more and writes `.cleaned` files; knows neither the log nor its readers, so
that it can work in a process of its own. The rules are those of Kafka's log cleaner:
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
_MOST_UNPACKED: Final = 1024 * 1024 * 1024
"""Bytes that a batch may unpack to and still be cleaned."""
_DECIDED_BYTES: Final = 1024 * 1024
"""Batches, with what they unpack to, that are looked at together."""


class _Marker(NamedTuple):
    """What a control batch is: without its record, of no more use, the end of that transaction."""

    is_gone: bool
    is_useless: bool
    aborted: AbortedTransaction | None


class _Decided(NamedTuple):
    """A batch: its marker, if it is a control batch; whether its records go; its `body` if they are to be judged."""

    header: BatchHeader
    batch: memoryview
    marker: _Marker | None = None
    goes: bool = False
    body: Buffer | None = None


class Cleaner:
    """Does one job: `build_map`, then `clean` for each of `groups`.

    `check` is called at every read; it raises to end the work. A batch with a sound checksum whose records cannot be
    read stays as it is, and is told of in `unreadable`: nobody can read it, and the rest of the log is to be cleaned.
    """

    def __init__(self, job: CleaningJob, check: Callable[[], None] = lambda: None) -> None:
        self._job = job
        self._throttle = Throttle(job.bytes_per_second, check)
        self._aborted = _aborted_in(job.directory, job.transaction_segments)
        self._transactions = CleanedTransactions(self._aborted, job.segments[0].base_offset)
        self.map = self._map_from(job.first_dirty_offset)

    @property
    def end_offset(self) -> int:
        """Where the next pass begins: everything before it is clean after this one."""
        return self.map.latest_offset + 1

    @property
    def unreadable(self) -> dict[int, str]:
        """The batches that stay because they cannot be read, by base offset, and why."""
        return self.map.unreadable

    def _map_from(self, offset: int) -> "OffsetMap | PlainOffsetMap":
        try:
            from headrace.storage.cleaner.offset_map import OffsetMap as Map
        except ModuleNotFoundError:  # numpy comes with an extra
            from headrace.storage.cleaner.plain_offset_map import PlainOffsetMap as Map  # type: ignore[assignment]
        return Map(offset, max_bytes=self._job.map_bytes, random_bytes=os.urandom)

    def build_map(self) -> None:
        """Find the newest record of each key from the first dirty offset on, as far as memory allows.

        Raises KafkaError: corrupt_message for damage on the disk; kafka_storage_error where not even one batch fits
        into the memory. OSError.
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
                    # A body that waits to be looked at may be a small part of what was read with it, and keeps that.
                    self.map.look_at_waiting()
                    read = 0
            self.map.skip_to(ends - 1)

    def _readable_body(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """The uncompressed records; None where they cannot be read, or are too many to be held."""
        try:
            body = _body(header, batch)
        except KafkaError as error:
            self.map.unreadable[header.base_offset] = str(error)
            return None
        if header.record_count * MIN_RECORD > len(body):
            # it would take up the room of records that it does not have
            self.map.unreadable[header.base_offset] = f"{header.record_count} records are counted in {len(body)} bytes"
            return None
        return body

    def _make_room(self, header: BatchHeader) -> bool:
        """Whether the batch fits into the map. Raises KafkaError(kafka_storage_error) where none ever will."""
        if self.map.is_empty:
            # every offset takes some bytes from here on, and there may be a long gap behind the first dirty one
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
            f"{header.record_count} records at offset {header.base_offset} do not fit into the "
            f"{self._job.map_bytes:.0f} bytes of a cleaner thread: raise log.cleaner.dedupe.buffer.size",
        )

    def groups(self) -> list[list[SourceSegment]]:
        """Runs of segments that together are no larger than one may be, up to where the map reaches."""
        job = self._job
        segments = [each for each in job.segments if each.base_offset < self.end_offset]
        ends = [each.base_offset for each in segments[1:]] + [job.first_uncleanable_offset]
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
        """Write what stays of the segments into `.cleaned` files, which are on the disk afterwards.

        Raises KafkaError(corrupt_message), OSError; the files of a failed attempt are removed.
        """
        writer = CleanedSegment(self._job, group[0].base_offset, self._throttle)
        records_read = 0
        try:
            for segment in group:
                for decided in self._some_decided(segment):
                    records_read += sum(each.header.record_count for each in decided)
                    self._copy_all(decided, writer)
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

    # -- what stays of a batch -----------------------------------------------------------------------------------------

    def _some_decided(self, segment: SourceSegment) -> Iterator[list["_Decided"]]:
        """The batches of a segment, as many at a time as do not take much memory."""
        some: list[_Decided] = []
        size = 0
        for header, batch in self._batches(segment):
            each = self._decided(header, batch)
            some.append(each)
            size += len(batch) if each.body is None else len(batch) + len(each.body)
            if size >= _DECIDED_BYTES or len(some) >= MANY_BATCHES:
                yield some
                some = []
                size = 0
        if some:
            yield some

    def _decided(self, header: BatchHeader, batch: memoryview) -> "_Decided":
        """Told of every batch in order."""
        if header.is_control:
            key = _control_key(header, batch)
            useless, aborted = self._transactions.marker(header, key)
            return _Decided(header, batch, marker=_Marker(key is None, useless, aborted))
        if self._transactions.is_aborted(header) or not header.record_count:
            return _Decided(header, batch, goes=True)
        if header.base_offset < self.map.first_offset:
            return _Decided(header, batch, body=self._readable_body(header, batch))
        return new_tuple(_Decided, (header, batch, None, False, None))

    def _copy_all(self, decided: Sequence["_Decided"], writer: CleanedSegment) -> None:
        clean = [(each.header, each.body) for each in decided if each.body is not None]
        judged = iter(self.map.judge([header for header, _ in clean], [body for _, body in clean]) if clean else ())
        for header, batch, marker, goes, body in decided:
            fates = None if body is None else next(judged)
            if marker is not None:
                self._copy_control(header, batch, marker, writer)
            elif goes:
                self._copy_empty(header, writer)
            elif header.base_offset > self.map.latest_offset or header.base_offset in self.map.unreadable:
                writer.add(header, batch)
            else:
                self._copy_records(header, batch, fates, writer)

    def _copy_control(self, header: BatchHeader, batch: memoryview, marker: "_Marker", writer: CleanedSegment) -> None:
        if marker.aborted is not None:
            writer.segment.txn_index.append(marker.aborted)
        horizon = _delete_horizon(header)
        if marker.is_gone or (marker.is_useless and horizon is not None and horizon <= self._job.now_ms):
            self._copy_empty(header, writer)
        elif marker.is_useless and horizon is None and header.record_count == 1:
            body = uncompressed_body(header, batch, 0)
            self._rebuild(header, body, [only_record(body)], writer, set_horizon=True)
        else:
            writer.add(header, batch)

    def _copy_empty(self, header: BatchHeader, writer: CleanedSegment) -> None:
        """Keep the header where it alone tells a producer's state or where the cleaned part ends."""
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
        body = uncompressed_body(header, batch, 0, _MOST_UNPACKED)
        kept = survivors(body, records.fates, records.sizes)
        horizon = _delete_horizon(header)
        if horizon is not None and horizon <= self._job.now_ms:
            kept = [each for each in kept if each.has_value]
        set_horizon = horizon is None and not all(each.has_value for each in kept)
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
    """The uncompressed records; a part of `batch` where they are not compressed."""
    return batch[HEADER_SIZE:] if header.codec == Codec.NONE else uncompressed_body(header, batch, 0, _MOST_UNPACKED)


def _control_key(header: BatchHeader, batch: Buffer) -> bytes | None:
    if not header.record_count:
        return None
    first = next(records_of(header, uncompressed_body(header, batch, 0)), None)
    return None if first is None else first.key


def _delete_horizon(header: BatchHeader) -> int | None:
    return header.base_timestamp if header.attributes & DELETE_HORIZON_FLAG else None


def _aborted_in(directory: Path, base_offsets: Sequence[int]) -> list[AbortedTransaction]:
    """Every aborted transaction that the indexes of the segments tell of."""
    return [
        transaction
        for base_offset in base_offsets
        for transaction in TransactionIndex(segment_file(directory, base_offset, TXN_INDEX_SUFFIX)).read()
    ]
