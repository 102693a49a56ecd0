"""Rebuilds transaction indexes (`.txnindex`) from batches; they may be lost after a crash, or deleted by hand."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headrace.errors import KafkaError
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.storage.log.producers.producer_snapshot import CorruptSnapshotError, read_snapshot, snapshots
from headrace.storage.log.segment import Segment, damage_error
from headrace.storage.log.valid_batches import valid_batches
from headrace.wire.batch import BatchHeader
from headrace.wire.records import Record, iter_records

_NO_LIMIT: Final = 2**63

log = logging.getLogger(__name__)


def restore_transaction_indexes(directory: Path, segments: Sequence[Segment]) -> None:
    """Rewrite suspect indexes that differ from the batches.

    Raises OSError, and KafkaError as `Segment.headers` does or for an invalid control batch.
    """
    suspects = [place for place, segment in enumerate(segments) if segment.txn_index.is_suspect]
    if (damage := _restore(directory, segments, suspects)) is not None:
        raise damage.error


def restore_lost_indexes(directory: Path, segments: Sequence[Segment], rebuilt: Collection[int]) -> None:
    """Write the missing transaction indexes of segments whose other indexes must be rebuilt; they may be lost, too.

    `rebuilt` are the base offsets of these segments. Call it before their indexes are rebuilt: then an interrupted
    start does the same again. Logs an error if batches are damaged. Raises OSError.
    """
    lost = [
        place
        for place, segment in enumerate(segments)
        if segment.base_offset in rebuilt and not segment.txn_index.exists and not segment.is_cut
    ]
    while (damage := _restore(directory, segments, lost, checked=True)) is not None:
        if damage.place == len(segments) - 1:
            return  # recovery checks the last segment, and then restores its index
        log.error(
            "%s: read_committed consumers may get records of aborted transactions, because transaction indexes may be"
            " missing and cannot be rebuilt from damaged batches: %s",
            directory,
            damage.error,
        )
        # segments with a snapshot after the damage do not depend on it
        after = segments[damage.place + 1].base_offset
        lost = [place for place in lost if segments[place].base_offset >= after]
        while lost and _state_before(directory, segments, lost[0])[1] < after:
            del lost[0]


class _Damage(NamedTuple):
    place: int
    error: KafkaError


def _restore(
    directory: Path, segments: Sequence[Segment], places: Sequence[int], *, checked: bool = False
) -> _Damage | None:
    """Rewrite the transaction indexes of the segments at `places` if they differ. Return the first damage.

    With `checked`, also verify the checksums and the order of the batches: damaged offsets would lead to wrong entries.
    """
    if not places:
        return None
    wanted = set(places)
    transactions, start = _state_before(directory, segments, places[0])
    begin = max((place for place, segment in enumerate(segments) if segment.base_offset <= start), default=0)
    for place in range(begin, places[-1] + 1):
        segment = segments[place]
        following = segments[place + 1].base_offset if place + 1 < len(segments) else _NO_LIMIT
        aborted, error = _replayed(segment, transactions, start, following if checked else None)
        if place in wanted and (checked or error is None):
            if not segment.txn_index.contains(aborted):
                path = segment.txn_index.path
                log.warning("%s differs from the log: rewriting it with %d entries", path, len(aborted))
                segment.txn_index.replace(aborted)
            segment.txn_index.is_suspect = False
        if error is not None:
            return _Damage(place, error)
    return None


def _replayed(
    segment: Segment, transactions: OpenTransactions, start: int, limit: int | None
) -> tuple[list[AbortedTransaction], KafkaError | None]:
    """Replay a segment; return the transactions that it aborts, and the damage that ended the replay.

    With a `limit`, the batches must be valid, with offsets below the limit.
    """
    aborted: list[AbortedTransaction] = []
    end = 0
    try:
        for position, header in segment.headers() if limit is None else valid_batches(segment, limit):
            end = position + header.size
            if header.base_offset >= start and header.is_transactional:
                found = replay_transactional(segment, position, header, transactions)
                if found is not None:
                    aborted.append(found)
    except KafkaError as error:
        return aborted, error
    is_damaged = limit is not None and (segment.is_cut or end < segment.size)
    return aborted, damage_error(segment.path, end) if is_damaged else None


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


def _state_before(directory: Path, segments: Sequence[Segment], place: int) -> tuple[OpenTransactions, int]:
    """Return the open transactions of the newest snapshot up to the segment at `place`, and its offset.

    The offset is 0 without a snapshot. Snapshots from before the first segment are outdated, and ignored.
    """
    for at, path in sorted(snapshots(directory).items(), reverse=True):
        if segments[0].base_offset <= at <= segments[place].base_offset:
            try:
                return OpenTransactions(read_snapshot(path)), at
            except (CorruptSnapshotError, OSError) as error:
                log.warning("%s. Reading the open transactions from an older snapshot, or from the log", error)
    return OpenTransactions(), 0
