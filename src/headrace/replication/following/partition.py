"""A partition that this broker follows: a log, the state of its producers, and the leader's high watermark."""

import logging
from typing import NamedTuple
from uuid import UUID
from weakref import WeakMethod

from headrace.replication.following.fetched_batches import PlacedBatch, Run, UnexpectedOffsetError, runs_of
from headrace.replication.following.follower_state import LogEnd, truncation_offset
from headrace.replication.producer_recovery import RecoveredProducers, recover_before, recover_producers
from headrace.replication.producer_state import ProducerState
from headrace.replication.replica import Replica
from headrace.slices import Steps
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.control import coordinator_epoch_of, marker_of
from headrace.wire.records import iter_records

log = logging.getLogger(__name__)


class AppendedRecords(NamedTuple):
    """The result of `append_fetched`: bytes and batches written."""

    size: int
    batches: int


class FollowedPartition(Replica):
    """A partition that this broker follows. Its log, producers and transactions become a `Partition` when it leads.

    `high_watermark` begins with the value of the checkpoint, limited to the log end offset.
    """

    __slots__ = ("leader",)

    def __init__(
        self,
        log: Log,
        *,
        topic_id: UUID,
        leader: int,
        leader_epoch: int,
        high_watermark: int,
        producers: ProducerState,
        transactions: OpenTransactions,
    ) -> None:
        super().__init__(
            log,
            topic_id=topic_id,
            leader_epoch=leader_epoch,
            high_watermark=max(log.log_start_offset, min(high_watermark, log.log_end_offset)),
            producers=producers,
            transactions=transactions,
        )
        log.state.producers_writer = WeakMethod(self.write_producer_snapshot)
        self.leader = leader
        self.transactions.markers.loaded(log.log_end_offset)

    def log_end(self) -> LogEnd:
        state = self.log.state
        return LogEnd(state.log_end_offset, self.log.leader_epochs.latest, state.log_start_offset)

    @property
    def needs_flush(self) -> bool:
        """True if `flush.messages` requires a flush before the leader may count the last append."""
        state = self.log.state
        return state.log_end_offset - self.log.flusher.recovery_point >= state.config.flush_messages

    # Appending

    def append_fetched(self, records: memoryview, now_ms: int, *, leader_start: int = -1) -> AppendedRecords:
        """Append the whole batches in `records`, one write per run of one leader epoch.

        `leader_start` is the leader's log start offset; -1 if it is not known.
        Raises UnexpectedOffsetError, and KafkaError: corrupt_message, unsupported_for_message_format,
        kafka_storage_error, after which earlier runs may have been appended.
        """
        try:
            runs = runs_of(records, self.log.state.log_end_offset, self.leader_epoch)
        except UnexpectedOffsetError as error:
            if not self._is_cut_by_log_start(error, max(leader_start, self.log.log_start_offset)):
                raise
            start = error.first_offset
            log.info("%s: all its records are deleted; starting again at offset %d", self.topic_partition, start)
            self.truncate_fully_and_start_at(start)
            runs = runs_of(records, start, self.leader_epoch)
        size = batches = 0
        for run in runs:
            size += self._append_run(records, run, now_ms)
            batches += len(run.batches)
        return AppendedRecords(size, batches)

    def _is_cut_by_log_start(self, error: UnexpectedOffsetError, log_start_offset: int) -> bool:
        """Return True if all records of this log are deleted, and the log now starts within the first batch.

        DeleteRecords may move the log start offset into a batch. If this log has other batches there, from an earlier
        leader epoch, the leader's log no longer contains the point of divergence.
        """
        end_offset = self.log.log_end_offset
        return end_offset <= log_start_offset and error.first_offset < end_offset <= error.last_offset

    def _append_run(self, records: memoryview, run: Run, now_ms: int) -> int:
        """Write a run at once if it fits into the active segment, else batch by batch. Return its bytes."""
        batches = run.batches
        start, end = batches[0].start, batches[-1].end
        last_offset = batches[-1].header.last_offset
        if self.log.fits_active_segment(end - start, last_offset, run.max_timestamp, now_ms):
            self.log.append(
                (records[start:end],),
                end - start,
                base_offset=batches[0].header.base_offset,
                first_last_offset=batches[0].header.last_offset,
                last_offset=last_offset,
                max_timestamp=run.max_timestamp,
                offset_of_max_timestamp=run.offset_of_max_timestamp,
                leader_epoch=run.epoch,
                now_ms=now_ms,
            )
            for batch in run.of_producers:
                self._note(records, batch)
        else:
            for batch in batches:
                self._append_batch(records, batch, now_ms)
        return end - start

    def _append_batch(self, records: memoryview, batch: PlacedBatch, now_ms: int) -> None:
        header, start, end = batch
        self.log.append(
            (records[start:end],),
            end - start,
            base_offset=header.base_offset,
            first_last_offset=header.last_offset,
            last_offset=header.last_offset,
            max_timestamp=header.max_timestamp,
            offset_of_max_timestamp=header.last_offset,
            leader_epoch=header.partition_leader_epoch,
            now_ms=now_ms,
        )
        if header.producer_id >= 0:
            self._note(records, batch)

    def _note(self, records: memoryview, batch: PlacedBatch) -> None:
        """Update producers and transactions with an appended batch."""
        header = batch.header
        if header.is_control:
            self._note_marker(records, batch)
            return
        self.producers.update(header, header.base_offset, header.last_offset, header.max_timestamp)
        if header.attributes & TRANSACTIONAL_FLAG:
            self.transactions.add(header)

    def _note_marker(self, records: memoryview, batch: PlacedBatch) -> None:
        header = batch.header
        record = next(iter_records(bytes(records[batch.start : batch.end])), None)
        marker = None if record is None else marker_of(record.key)
        if record is None or marker is None:
            return  # compaction has removed the marker with its transaction
        self.producers.end_transaction(header, coordinator_epoch_of(record.value))
        aborted = self.transactions.end_at(header.producer_id, header.last_offset, marker)
        if aborted is not None:
            self.log.note_aborted(aborted)
        self.growth.lose_count()  # the whole transaction becomes visible

    def learn(self, high_watermark: int, log_start_offset: int) -> None:
        """Adopt the leader's high watermark and log start offset, limited to this log."""
        state = self.log.state
        high_watermark = max(state.log_start_offset, min(high_watermark, state.log_end_offset))
        if high_watermark != self.high_watermark:
            self.high_watermark = high_watermark
            self.transactions.committed_to(high_watermark)
            if self.growth.watchers:
                self.growth.report()
        if log_start_offset > state.log_start_offset:
            self.log.advance_log_start(min(log_start_offset, high_watermark))

    # Truncating

    def diverging_offset(self, leader_epoch: int, leader_end_offset: int) -> int:
        """Return the offset from which this log diverges from the leader's.

        `leader_epoch` is the leader's largest epoch up to this log's last one, and ends at `leader_end_offset`. If the
        logs also differ before that, the next fetch after a truncation shows it.
        """
        return truncation_offset(
            self.log.leader_epochs.end_offset_for(leader_epoch),
            self.log_end_offset,
            leader_epoch=leader_epoch,
            leader_end_offset=leader_end_offset,
        )

    def truncate_where_diverging(
        self, leader_epoch: int, leader_end_offset: int, recovered: RecoveredProducers | None = None
    ) -> int:
        """Truncate to `diverging_offset`, and return it. Raises KafkaError as `truncate_to` does."""
        offset = self.diverging_offset(leader_epoch, leader_end_offset)
        self.truncate_to(offset, recovered)
        return offset

    def recover_before(self, offset: int) -> Steps[RecoveredProducers | None]:
        """Read the producer state for `truncate_to`, in steps because this may take a long time. Changes nothing.

        Return None if the log does not extend beyond `offset`. Raises KafkaError(kafka_storage_error).
        """
        if offset >= self.log_end_offset:
            return None
        try:
            return (yield from recover_before(self.log, offset))
        except OSError as error:
            raise self.log.state.storage_error("truncate", error) from error

    def truncate_to(self, offset: int, recovered: RecoveredProducers | None = None) -> None:
        """Delete the batch that contains `offset`, everything after it, and the producer state that depends on them.

        `recovered` is the result of `recover_before`; without it, the producer state is read now. Raises KafkaError as
        `Log.truncate_to` does.
        """
        is_shorter = offset < self.log_end_offset
        if offset < self.high_watermark:
            log.warning(
                "%s: truncating to offset %d, below the high watermark %d: committed records are lost",
                self.topic_partition,
                offset,
                self.high_watermark,
            )
        self.log.truncate_to(offset)
        if is_shorter:
            with self.log.state.truncating():
                self._reload(recovered)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete everything and continue at `offset`. Raises KafkaError(kafka_storage_error)."""
        self.log.truncate_fully_and_start_at(offset)
        with self.log.state.truncating():
            self._reload()
        self.high_watermark = offset

    def _reload(self, recovered: RecoveredProducers | None = None) -> None:
        """Use `recovered` as the producer state if it is that of the truncated log; otherwise read it from the log."""
        self.high_watermark = max(self.log_start_offset, min(self.high_watermark, self.log_end_offset))
        if recovered is None or recovered.end_offset != self.log_end_offset:
            self.producers, self.transactions = recover_producers(self.log, self.high_watermark)
        else:
            self.producers, self.transactions = recovered.producers, recovered.transactions
            self.transactions.committed_to(self.high_watermark)
        self.transactions.markers.loaded(self.log_end_offset)
