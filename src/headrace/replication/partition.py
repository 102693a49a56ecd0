"""A partition that this broker leads: a log, the state of its producers, and the high watermark.

A thin shell around the log and the pure producer state. Waiting fetches watch the partition's `growth` and are answered
later, so that an append never encodes a reply to a consumer.
"""

import logging
import struct
from collections.abc import Sequence
from typing import Final
from uuid import UUID

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.appends import ALL_REPLICAS, Appended, AppendResult, Batch, NoRoomError, Placed
from headrace.replication.batch_rules import Accepted, PreparedBatch, accept
from headrace.replication.leading.led_replica import LedReplica
from headrace.replication.producer_checks import Before, ProducerChecks
from headrace.replication.producer_state import ProducerState
from headrace.replication.verification import VerificationGuard
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.types import Buffer, new_tuple
from headrace.wire.batch import TRANSACTIONAL_FLAG, BatchHeader, parse_header
from headrace.wire.compression import codec_named
from headrace.wire.control import Marker, marker_batch

_PLACED = struct.Struct(">qii")
_PLACED_SIZE: Final = 16
"""Bytes at the start of a batch that the checksum does not cover: base offset, length, leader epoch, all set here."""

log = logging.getLogger(__name__)


class Partition(LedReplica):
    """A partition that this broker leads."""

    __slots__ = (
        "_checks",
        "refusal",
    )

    def __init__(
        self,
        log: Log,
        *,
        topic_id: UUID,
        leader_epoch: int,
        producers: ProducerState,
        transactions: OpenTransactions | None = None,
        high_watermark: int | None = None,
    ) -> None:
        """`high_watermark` is by default the log end offset, as for a partition with only one replica."""
        super().__init__(
            log,
            topic_id=topic_id,
            leader_epoch=leader_epoch,
            high_watermark=log.log_end_offset if high_watermark is None else high_watermark,
            producers=producers,
            transactions=OpenTransactions() if transactions is None else transactions,
        )
        self.transactions.markers.loaded(log.log_end_offset)
        self._checks = ProducerChecks(producers, self.transactions)
        self.refusal: str | None = None
        """The reason why records from clients are refused now."""

    def append_as_leader(
        self,
        records: bytes | PreparedBatch,
        *,
        now_ms: int,
        acks: int = ALL_REPLICAS,
        internal: bool = False,
        guard: VerificationGuard | None = None,
    ) -> AppendResult:
        """Append one batch; `internal` for the broker's own records.

        `guard` verifies a batch that begins a transaction. Raises KafkaError: the errors of `accept`;
        not_enough_replicas (acks=all), out_of_order_sequence_number, invalid_producer_epoch, invalid_txn_state;
        kafka_storage_error if the write fails, which leaves the log unchanged, or if the disk is nearly full.
        """
        checked = self._checked(records, now_ms, acks, internal, guard)
        if type(checked) is AppendResult:
            return checked
        header, batch, append_time = checked
        base_offset = self.log.state.log_end_offset
        last_offset = base_offset + header.last_offset_delta
        self._append(header, batch, base_offset, last_offset, now_ms)
        self._advance(now_ms)
        return new_tuple(AppendResult, (base_offset, last_offset, append_time, self.log.state.log_start_offset))

    def append_own(self, batch: bytes, now_ms: int, guard: VerificationGuard | None = None) -> int:
        """Append a batch that this broker has just built, without checking its records. Return its base offset.

        If it is transactional, its transaction is checked. Raises KafkaError as `append_as_leader` does.
        """
        config = self.log.state.config
        header = parse_header(batch)
        if (
            self.isr_size < config.min_insync_replicas
            or len(batch) > config.max_message_bytes
            or not (config.compression_type == "producer" or codec_named(config.compression_type) == header.codec)
            or config.message_timestamp_type == "LogAppendTime"
        ):
            return self.append_as_leader(batch, now_ms=now_ms, internal=True, guard=guard).base_offset
        if header.attributes & TRANSACTIONAL_FLAG:
            self._checks.check_own(header, guard)
        base_offset = self.log.state.log_end_offset
        self._append(header, batch, base_offset, base_offset + header.last_offset_delta, now_ms)
        self._advance(now_ms)
        return base_offset

    def append_all(self, batches: Sequence[Batch], *, now_ms: int) -> list[Appended]:
        """Append several batches. Return a result per batch, or the error that `append_as_leader` would raise.

        One write appends all of them if they fit into one segment, at little more than the cost of one batch.
        """
        before: Before = {}
        base_offset = self.log.state.log_end_offset
        try:
            results = self._append_all(batches, now_ms, before)
        except BaseException:
            # Forget unwritten batches: otherwise a retry would be treated as a duplicate.
            self._checks.put_back(before)
            raise
        if self.log.state.log_end_offset > base_offset:
            self._advance(now_ms)
        return results

    def _append_all(self, batches: Sequence[Batch], now_ms: int, before: Before) -> list[Appended]:
        """Like `append_all`; saves the state of producers in `before`, until their batches are written."""
        log = self.log
        state = log.state
        base_offset = end_offset = state.log_end_offset
        placed: list[Placed] = []
        buffers: list[Buffer] = []
        size = 0
        max_timestamp = offset_of_max_timestamp = -1
        results: list[Appended] = []
        for sent in batches:
            try:
                checked = self._checked(sent.records, now_ms, sent.acks, False, sent.guard)
            except KafkaError as error:
                results.append(error)
                continue
            if type(checked) is AppendResult:
                results.append(checked)
                continue
            header, batch, append_time = checked
            # Unpacked once: locals are several times faster than fields.
            _, length, _, _, _, _, last_delta, _, timestamp, producer_id, _, _, _ = header
            first_offset = end_offset
            last_offset = first_offset + last_delta
            end_offset = last_offset + 1
            placed.append(new_tuple(Placed, (header, batch, first_offset, last_offset)))
            results.append(new_tuple(AppendResult, (first_offset, last_offset, append_time, state.log_start_offset)))
            buffers.append(_PLACED.pack(first_offset, length, self.leader_epoch))
            buffers.append(memoryview(batch)[_PLACED_SIZE:])
            size += len(batch)
            if timestamp > max_timestamp:
                max_timestamp, offset_of_max_timestamp = timestamp, last_offset
            if producer_id >= 0:
                # The next batch may be of the same producer, so its check needs this one.
                self._checks.note(producer_id, before)
                self._checks.appended(header, first_offset, last_offset)
        if not placed:
            return results
        try:
            if log.fits_active_segment(size, end_offset - 1, max_timestamp, now_ms):
                log.append(
                    buffers,
                    size,
                    base_offset=base_offset,
                    first_last_offset=placed[0].last_offset,
                    last_offset=end_offset - 1,
                    max_timestamp=max_timestamp,
                    offset_of_max_timestamp=offset_of_max_timestamp,
                    leader_epoch=self.leader_epoch,
                    now_ms=now_ms,
                )
            else:
                self._checks.put_back(before)
                before.clear()
                for batch_placed in placed:
                    self._append(*batch_placed, now_ms)
        except KafkaError as failure:
            self._checks.put_back(before)
            end_offset = state.log_end_offset
            return [
                failure if isinstance(result, AppendResult) and result.base_offset >= end_offset else result
                for result in results
            ]
        return results

    def _checked(
        self, records: bytes | PreparedBatch, now_ms: int, acks: int, internal: bool, guard: VerificationGuard | None
    ) -> AppendResult | Accepted:
        """Return the batch to write, or the position of the batch that it repeats. Raises KafkaError."""
        config = self.log.state.config
        if acks == ALL_REPLICAS and self.isr_size < config.min_insync_replicas:
            self.check_in_sync()
        accepted = accept(records, config, now_ms, internal=internal)
        header = accepted[0]
        if self.refusal is not None and not internal:
            raise NoRoomError(ErrorCode.kafka_storage_error, self.refusal)
        if header.attributes & TRANSACTIONAL_FLAG and internal:
            self._checks.check_own(header, guard)
        elif header.producer_id >= 0 or header.attributes & TRANSACTIONAL_FLAG:
            earlier = self._checks.check(header, guard)
            if earlier is not None:
                return AppendResult(
                    earlier.first_offset, earlier.last_offset, earlier.timestamp, self.log.log_start_offset
                )
        return accepted

    def _append(self, header: BatchHeader, batch: Buffer, base_offset: int, last_offset: int, now_ms: int) -> None:
        """Write a data batch. Raises KafkaError(kafka_storage_error), which leaves everything unchanged."""
        self._write(header, batch, base_offset, last_offset, now_ms)
        if header.producer_id >= 0:
            self._checks.appended(header, base_offset, last_offset)

    def _write(self, header: BatchHeader, batch: Buffer, base_offset: int, last_offset: int, now_ms: int) -> None:
        self.log.append(
            (_PLACED.pack(base_offset, header.batch_length, self.leader_epoch), memoryview(batch)[_PLACED_SIZE:]),
            len(batch),
            base_offset=base_offset,
            first_last_offset=last_offset,
            last_offset=last_offset,
            max_timestamp=header.max_timestamp,
            offset_of_max_timestamp=last_offset,
            leader_epoch=self.leader_epoch,
            now_ms=now_ms,
        )

    def _advance(self, now_ms: int) -> None:
        """Make appended records visible to consumers, after a flush if required."""
        log = self.log
        state = log.state
        end_offset = state.log_end_offset
        if self.log_growth.watchers:
            self.log_growth.report()
        if self.awaits_flush or end_offset - log.flusher.recovery_point >= state.config.flush_messages:
            self._flush_first(now_ms)
        elif self.followers is None:
            self.high_watermark = end_offset
            if self.transactions.first_offset is not None:
                self.transactions.committed_to(end_offset)
            if self.growth.watchers:
                self.growth.report()
        else:
            self.followers.appended(end_offset)

    def start_verification(
        self, producer_id: int, producer_epoch: int, base_sequence: int = -1, *, adds: bool = False, now_ms: int = 0
    ) -> VerificationGuard | None:
        """Begin to verify the producer's transaction (KIP-890); return None if it is already open in this partition.

        `adds`: verifying also adds the partition (transaction version 2). Raises KafkaError(invalid_producer_epoch).
        """
        if self.transactions.is_open(producer_id, producer_epoch):
            return None
        return self.producers.start_verification(
            producer_id, producer_epoch, base_sequence, begins_at_zero=adds and base_sequence >= 0, now_ms=now_ms
        )

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        coordinator_epoch: int,
        now_ms: int,
        transaction_version: int = 0,
    ) -> int:
        """Append the marker that ends the producer's transaction (KIP-98), and return the offset after it.

        read_committed consumers stop before the transaction until the high watermark passes the marker. Raises
        KafkaError: invalid_producer_epoch, transaction_coordinator_fenced, not_enough_replicas, kafka_storage_error.
        """
        if self.isr_size < self.log.state.config.min_insync_replicas:
            self.check_in_sync()
        self._checks.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        offset = self.log.log_end_offset
        marker = Marker.COMMIT if commit else Marker.ABORT
        batch = marker_batch(marker, coordinator_epoch, producer_id, producer_epoch, now_ms)
        header = parse_header(batch)
        self._write(header, batch, offset, offset, now_ms)
        self.producers.end_transaction(header, coordinator_epoch)
        aborted = self.transactions.end_at(producer_id, offset, marker)
        if aborted is not None:
            self.log.note_aborted(aborted)
        self.growth.lose_count()  # the whole transaction becomes visible
        self._advance(now_ms)
        return offset + 1

    def _flush_first(self, now_ms: int) -> None:
        """Flush appended records before consumers see them and producers are answered."""
        if self.completions is None:
            self.log.flusher.flush(now_ms)
            self.flushed_to(self.log.log_end_offset)
        else:
            self.awaits_flush = True
            self.completions.flush(self)

    def flushed_to(self, offset: int) -> None:
        """Make the flushed records before `offset` visible, and later ones if they do not require a flush."""
        end_offset = self.log.log_end_offset
        self.awaits_flush = end_offset - offset >= self.log.config.flush_messages
        visible = offset if self.awaits_flush else end_offset
        if self.followers is not None:
            self.followers.appended(visible)
        elif visible > self.high_watermark:
            self.advance_high_watermark(visible)
        if self.completions is not None:
            self.completions.advanced(self)

    def delete_records(self, offset: int) -> int:
        """Raise the log start offset to `offset` (-1: the high watermark), and return the new one.

        Raises KafkaError: offset_out_of_range below -1 or beyond the high watermark, policy_violation for a topic
        without `cleanup.policy=delete`, kafka_storage_error.
        """
        if not self.log.config.deletes:
            raise KafkaError(
                ErrorCode.policy_violation,
                f"records of {self.topic_partition} cannot be deleted: its cleanup.policy does not contain delete",
            )
        target = self.high_watermark if offset == -1 else offset
        if not 0 <= target <= self.high_watermark:
            raise KafkaError(
                ErrorCode.offset_out_of_range,
                f"cannot delete records before {offset}: the high watermark of {self.topic_partition} is"
                f" {self.high_watermark}",
            )
        if target > self.log.log_start_offset:
            self.log.advance_log_start(target)
            if self.growth.watchers:
                self.growth.report()  # so that fetch sessions notice the new start
        return self.log.log_start_offset
