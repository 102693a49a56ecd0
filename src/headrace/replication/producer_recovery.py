"""Read the state of producers and their transactions from a log: at start, and after a truncation."""

import logging
from typing import Final

from headrace.errors import KafkaError
from headrace.replication.producer_state import ProducerState
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.storage.log.producers.producer_snapshot import CorruptSnapshotError, read_snapshot, snapshots
from headrace.storage.log.producers.txn_recovery import control_record
from headrace.wire.control import coordinator_epoch_of, marker_of

_RECALLED_INDEX_ENTRIES: Final = 128
"""Index entries to read for the latest batches of producers: enough for their requests in flight."""

log = logging.getLogger(__name__)


def recover_producers(opened: Log, high_watermark: int) -> tuple[ProducerState, OpenTransactions]:
    """Load the newest readable snapshot, and replay the log after it.

    Transactions whose markers are at or after `high_watermark` still hold back the last stable offset.
    """
    state = ProducerState()
    transactions = OpenTransactions()
    # Not from the log start offset: earlier batches are still needed for the last sequence numbers of producers.
    start = opened.segments.first_offset
    for offset, path in sorted(snapshots(opened.directory).items(), reverse=True):
        try:
            entries = read_snapshot(path)
        except (CorruptSnapshotError, OSError) as error:
            log.warning("%s: %s. Using an older producer snapshot, or the log", opened.topic_partition, error)
            continue
        state.restore(entries)
        if entries:
            try:
                state.recall(opened.segments.headers_before(offset, _RECALLED_INDEX_ENTRIES))
            except (KafkaError, CorruptIndexError) as error:
                log.warning(
                    "%s: its latest batches cannot be read, so retries of idempotent producers may be refused: %s",
                    opened.topic_partition,
                    error,
                )
        transactions = OpenTransactions(entries)
        start = max(start, offset)
        break
    for segment, position, header in opened.segments.batches(start):
        if header.base_offset >= start:
            state.replay(header)
            if not header.is_transactional:
                continue
            if not header.is_control:
                transactions.add(header)
                continue
            record = control_record(segment, position, header)
            marker = None if record is None else marker_of(record.key)
            if record is not None and marker is not None:
                state.end_transaction(header, coordinator_epoch_of(record.value))
                transactions.end_at(header.producer_id, header.last_offset, marker)
    transactions.committed_to(high_watermark)
    return state, transactions
