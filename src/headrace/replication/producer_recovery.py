"""Read the state of producers and their transactions from a log: at start, and for a truncation."""

import logging
from contextlib import suppress
from typing import Final, NamedTuple

from headrace.errors import KafkaError
from headrace.replication.producer_state import ProducerState
from headrace.slices import Steps, chunks, run_all
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.storage.log.producers.producer_snapshot import CorruptSnapshotError, read_snapshot, snapshots
from headrace.storage.log.producers.txn_recovery import control_record
from headrace.wire.control import coordinator_epoch_of, marker_of

_RECALLED_INDEX_ENTRIES: Final = 128
"""Index entries to read for the latest batches of producers: enough for their requests in flight."""
_ENTRIES_A_STEP: Final = 100

log = logging.getLogger(__name__)


class RecoveredProducers(NamedTuple):
    """The producers and transactions of a log that ends, or will end, at `end_offset`."""

    producers: ProducerState
    transactions: OpenTransactions
    end_offset: int


def recover_producers(opened: Log, high_watermark: int) -> tuple[ProducerState, OpenTransactions]:
    """Load the newest readable snapshot, and replay the log after it.

    Transactions whose markers are at or after `high_watermark` still hold back the last stable offset.
    """
    state, transactions, _ = run_all(_recovered(opened, opened.log_end_offset))
    transactions.committed_to(high_watermark)
    return state, transactions


def recover_before(opened: Log, offset: int) -> Steps[RecoveredProducers]:
    """Return the state that the log will have after `Log.truncate_to(offset)`.

    Between two steps, the log may be compacted, moved, or shortened by retention. Raises OSError, and
    KafkaError(kafka_storage_error) for a damaged index.
    """
    first = next(opened.segments.headers(offset), None)
    return (yield from _recovered(opened, offset if first is None else min(offset, first.base_offset)))


def _recovered(opened: Log, end_offset: int) -> Steps[RecoveredProducers]:
    """Return the state before `end_offset`, which is the base offset of a batch or the end of the log."""
    state, transactions, start = yield from _from_snapshot(opened, end_offset)
    for number, (segment, position, header) in enumerate(opened.segments.batches(start), start=1):
        if header.base_offset >= end_offset:
            break
        if number % _ENTRIES_A_STEP == 0:
            yield
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
    return RecoveredProducers(state, transactions, end_offset)


def _from_snapshot(opened: Log, end_offset: int) -> Steps[tuple[ProducerState, OpenTransactions, int]]:
    """Load the newest readable snapshot up to `end_offset`, and return its state and offset.

    Without a snapshot, return the offset of the first segment. Snapshots before that offset are outdated.
    """
    # Not from the log start offset: earlier batches are still needed for the last sequence numbers of producers.
    state, start = ProducerState(), opened.segments.first_offset
    for offset, path in sorted(snapshots(opened.directory).items(), reverse=True):
        if not start <= offset <= end_offset:
            continue
        try:
            entries = read_snapshot(path)
        except (CorruptSnapshotError, OSError) as error:
            log.warning("%s: %s. Using an older producer snapshot, or the log", opened.topic_partition, error)
            if isinstance(error, CorruptSnapshotError):
                with suppress(OSError):
                    path.unlink()  # retention must not rely on it
            continue
        begun = []
        for some in chunks(entries, _ENTRIES_A_STEP):
            state.restore(some)
            begun += [entry for entry in some if entry.current_txn_first_offset >= 0]
            yield
        if len(state):
            yield from _recall(state, opened, offset)
        return state, OpenTransactions(begun), offset
    return state, OpenTransactions(), start


def _recall(state: ProducerState, opened: Log, offset: int) -> Steps[None]:
    """Add the latest batches before a snapshot to the state. Log failures."""
    latest = ProducerState()
    try:
        for number, header in enumerate(opened.segments.headers_before(offset, _RECALLED_INDEX_ENTRIES), start=1):
            latest.replay(header)
            if number % _ENTRIES_A_STEP == 0:
                yield
    except (KafkaError, CorruptIndexError) as error:
        log.warning(
            "%s: its latest batches cannot be read, so retries of idempotent producers may be refused: %s",
            opened.topic_partition,
            error,
        )
    else:
        state.recall(latest)
