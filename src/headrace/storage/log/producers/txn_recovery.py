"""Transaction indexes (`.txnindex`) from the batches of a log, where a crash or a hand may have taken them."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.storage.log.producers.producer_snapshot import CorruptSnapshotError, read_snapshot, snapshots
from headrace.storage.log.segment import Segment
from headrace.wire.batch import BatchHeader
from headrace.wire.records import Record, iter_records

log = logging.getLogger(__name__)


def restore_transaction_indexes(directory: Path, segments: Sequence[Segment]) -> None:
    """Write the indexes anew of those segments in which they are suspect, if they are not what the batches say.

    Raises KafkaError(corrupt_message) for a control batch that makes no sense; OSError.
    """
    suspects = [place for place, each in enumerate(segments) if each.txn_index.is_suspect]
    if not suspects:
        return
    transactions, start = _state_before(directory, segments[suspects[0]].base_offset)
    begin = max((place for place, each in enumerate(segments) if each.base_offset <= start), default=0)
    for segment in segments[begin : suspects[-1] + 1]:
        aborted = list(aborted_in(segment, transactions, start))
        if not segment.txn_index.is_suspect:
            continue
        if aborted != segment.txn_index.read():
            log.warning("%s is not what the log says; writing %d entries anew", segment.txn_index.path, len(aborted))
            segment.txn_index.replace(aborted)
        segment.txn_index.is_suspect = False


def aborted_in(segment: Segment, transactions: OpenTransactions, start: int) -> Iterator[AbortedTransaction]:
    """Tell `transactions` of every batch from offset `start` on; what markers in the segment abort."""
    for position, header in segment.headers():
        if header.base_offset >= start and header.is_transactional:
            aborted = replay_transactional(segment, position, header, transactions)
            if aborted is not None:
                yield aborted


def replay_transactional(
    segment: Segment, position: int, header: BatchHeader, transactions: OpenTransactions
) -> AbortedTransaction | None:
    """Take one transactional batch of the segment, or a marker, into account."""
    if not header.is_control:
        transactions.add(header)
        return None
    record = control_record(segment, position, header)
    return None if record is None else transactions.end(header, record.key)


def control_record(segment: Segment, position: int, header: BatchHeader) -> Record | None:
    """The record of a control batch; None where compaction has taken it out, as its transaction is gone."""
    return next(iter_records(segment.file.pread(header.size, position)), None)


def _state_before(directory: Path, offset: int) -> tuple[OpenTransactions, int]:
    """The open transactions as of the newest snapshot not behind `offset`, and its offset; 0 without one."""
    for at, path in sorted(snapshots(directory).items(), reverse=True):
        if at <= offset:
            try:
                return OpenTransactions(read_snapshot(path)), at
            except (CorruptSnapshotError, OSError) as error:
                log.warning("%s; reading transactions from an older snapshot or the log", error)
    return OpenTransactions(), 0
