"""Rebuilds transaction indexes (`.txnindex`) from batches; they may be lost after a crash, or deleted by hand."""

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.errors import KafkaError
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.storage.log.producers.producer_snapshot import CorruptSnapshotError, read_snapshot, snapshots
from headrace.storage.log.segment import MIN_BATCH_LENGTH, Segment, damage_error
from headrace.storage.log.segment_files import SNAPSHOT_SUFFIX, segment_file
from headrace.storage.log.valid_batches import valid_batches
from headrace.wire.batch import HEADER_SIZE, MAGIC_V2, BatchHeader, parse_header
from headrace.wire.records import Record, iter_records

_NO_LIMIT: Final = 2**63
_LARGEST_MARKER: Final = 128
"""More bytes than the batch of a transaction marker has, in any known version."""

log = logging.getLogger(__name__)


def restore_transaction_indexes(directory: Path, segments: Sequence[Segment]) -> None:
    """Rewrite suspect indexes that differ from the batches.

    Raises OSError, and KafkaError as `Segment.headers` does or for an invalid control batch.
    """
    suspects = {place for place, segment in enumerate(segments) if segment.txn_index.is_suspect}
    if not suspects:
        return
    transactions, start, begin = _state_before(directory, segments, min(suspects))
    for place in range(begin, max(suspects) + 1):
        aborted: list[AbortedTransaction] = []
        for position, header in segments[place].headers():
            if header.base_offset >= start:
                _replay(segments[place], position, header, transactions, aborted)
        if place in suspects:
            _rewrite(segments[place], aborted)


def restore_lost_indexes(directory: Path, segments: Sequence[Segment], rebuilt: Collection[int]) -> None:
    """Write the missing transaction indexes of segments whose other indexes must be rebuilt; they may be lost, too.

    `rebuilt` are the base offsets of these segments. Call it before their indexes are rebuilt: then an interrupted
    start does the same again. Checksums and the order of the batches are verified, because damaged offsets would lead
    to wrong entries. Raises OSError.

    Damage that may hide a marker makes the open transactions unknown, which is logged as an error. After that, only
    transactions that begin later are found, until a segment has a producer snapshot at its beginning.
    """
    lost = {
        place
        for place, segment in enumerate(segments)
        if segment.base_offset in rebuilt and not segment.txn_index.exists and not segment.is_cut
    }
    if not lost:
        return
    transactions, start, begin = _state_before(directory, segments, min(lost))
    is_complete = True
    for place in range(begin, max(lost) + 1):
        segment, is_last = segments[place], place + 1 == len(segments)
        if not is_complete and (known := _snapshot_at(directory, segment.base_offset)) is not None:
            transactions, is_complete = known, True
        aborted: list[AbortedTransaction] = []
        for position, header in _checked(segment, start, None if is_last else segments[place + 1].base_offset):
            damage, found = None if header is not None else damage_error(segment.path, position), len(aborted)
            if header is not None and header.base_offset >= start:
                try:
                    _replay(segment, position, header, transactions, aborted)
                except KafkaError as error:
                    damage = error
            if damage is not None and is_last:
                break  # recovery checks the last segment, and then restores its index
            if damage is not None:
                if is_complete:
                    log.error(
                        "%s: read_committed consumers may get records of aborted transactions, because transaction"
                        " indexes may be missing and cannot be rebuilt completely from damaged batches: %s",
                        directory,
                        damage,
                    )
                transactions, is_complete = OpenTransactions(), False
            if not is_complete and len(aborted) > found:
                # Unknown transactions may be open, so the last stable offset may be anywhere before. One that is too
                # late would end a reader's search before the entries of later segments.
                aborted[-1] = aborted[-1]._replace(last_stable_offset=segments[0].base_offset)
        if place in lost:
            _rewrite(segment, aborted)


def _replay(
    segment: Segment,
    position: int,
    header: BatchHeader,
    transactions: OpenTransactions,
    aborted: list[AbortedTransaction],
) -> None:
    if header.is_transactional:
        found = replay_transactional(segment, position, header, transactions)
        if found is not None:
            aborted.append(found)


def _rewrite(segment: Segment, aborted: Sequence[AbortedTransaction]) -> None:
    """Rewrite the segment's transaction index if it differs. Raises OSError."""
    if not segment.txn_index.contains(aborted):
        log.warning("%s differs from the log: rewriting it with %d entries", segment.txn_index.path, len(aborted))
        segment.txn_index.replace(aborted)
    segment.txn_index.is_suspect = False


def _checked(segment: Segment, start: int, limit: int | None) -> Iterator[tuple[int, BatchHeader | None]]:
    """Yield the position and header of every batch; None instead of the header for damage that may hide a marker.

    `limit` is the next segment's base offset. Without it, the first damage ends the walk; otherwise it goes on where
    the damage ends, if that is known. A damaged batch of records is yielded like others: its header shows its producer
    to consumers, too, and it cannot have ended a transaction. Damage before `start` does not matter.
    """
    end, next_offset = 0, segment.base_offset
    while end < segment.size:
        with suppress(KafkaError):  # an older message format
            for position, header in valid_batches(segment, _NO_LIMIT if limit is None else limit, end):
                if header.base_offset < next_offset:
                    break
                yield position, header
                end, next_offset = position + header.size, header.next_offset
        if end == segment.size:
            break
        damaged = None if limit is None else _confirmed_header(segment, end, next_offset, limit)
        if damaged is None:
            yield end, None
            return
        log.warning("%s; its header shows where the next batch begins", damage_error(segment.path, end))
        is_harmless = damaged.next_offset <= start or _cannot_be_marker(damaged)
        yield end, damaged if is_harmless else None
        end, next_offset = end + damaged.size, damaged.next_offset
    if segment.is_cut:
        yield end, None


def _confirmed_header(segment: Segment, position: int, offset: int, limit: int) -> BatchHeader | None:
    """Return the header of a damaged batch if the batches before and after it confirm its offsets and size.

    Then no other batch is hidden by the damage. Otherwise return None.
    """
    data = segment.file.pread(HEADER_SIZE, position)
    if len(data) < HEADER_SIZE:
        return None
    header = parse_header(data)
    end = position + header.size
    if header.magic != MAGIC_V2 or header.batch_length < MIN_BATCH_LENGTH or end > segment.size:
        return None
    following = limit if end == segment.size else int.from_bytes(segment.file.pread(8, end), "big")
    return header if header.base_offset == offset < header.next_offset == following <= limit else None


def _cannot_be_marker(header: BatchHeader) -> bool:
    """Return True for a damaged batch of records. A marker is a small batch with one record."""
    return not header.is_control and (header.last_offset_delta > 0 or header.size > _LARGEST_MARKER)


def replay_transactional(
    segment: Segment, position: int, header: BatchHeader, transactions: OpenTransactions
) -> AbortedTransaction | None:
    """Replay one transactional batch or marker, and return the transaction that it aborts."""
    if not header.is_control:
        transactions.add(header)
        return None
    record = control_record(segment, position, header)
    return None if record is None else transactions.end(header, record.key)


def control_record(segment: Segment, position: int, header: BatchHeader) -> Record | None:
    """Return the record of a control batch, or None if compaction has removed it with its transaction."""
    return next(iter_records(segment.file.pread(header.size, position)), None)


def _state_before(directory: Path, segments: Sequence[Segment], place: int) -> tuple[OpenTransactions, int, int]:
    """Return the open transactions of the newest snapshot up to the segment at `place`, and its offset and segment.

    The offset is 0 without a snapshot. Snapshots from before the first segment are outdated, and ignored.
    """
    for at in sorted(snapshots(directory), reverse=True):
        if segments[0].base_offset <= at <= segments[place].base_offset:
            known = _snapshot_at(directory, at)
            if known is not None:
                return known, at, max(place for place, segment in enumerate(segments) if segment.base_offset <= at)
    return OpenTransactions(), 0, 0


def _snapshot_at(directory: Path, offset: int) -> OpenTransactions | None:
    """Return the open transactions in the snapshot at `offset`; None if there is none, or it is damaged."""
    try:
        return OpenTransactions(read_snapshot(segment_file(directory, offset, SNAPSHOT_SUFFIX)))
    except FileNotFoundError:
        return None
    except (CorruptSnapshotError, OSError) as error:
        log.warning("%s. Reading the open transactions from an older snapshot, or from the log", error)
        return None
