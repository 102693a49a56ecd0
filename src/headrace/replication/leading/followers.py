"""The followers of one partition: a shell that passes log offsets and times to the pure leader state."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol
from uuid import UUID
from weakref import ref

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.leading.deletions import Deletions
from headrace.replication.leading.isr_changes import Answer, IsrChange
from headrace.replication.leading.leader_state import Leadership, LeaderState, Proposal
from headrace.replication.leading.peers import Peers
from headrace.replication.leading.read_replica import preferred_replica
from headrace.storage.log.log import Log
from headrace.types import TopicPartition

log = logging.getLogger(__name__)


class Led(Protocol):
    """The part of a partition that its followers depend on."""

    log: Log
    topic_id: UUID
    topic_partition: TopicPartition
    high_watermark: int

    @property
    def followers(self) -> "Followers | None": ...

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Raise the high watermark."""

    def note_isr(self, isr: tuple[int, ...], replica_count: int, partition_epoch: int) -> None:
        """Record the in-sync replicas that the controller has confirmed."""


class Followers:
    """The followers of a partition with several replicas. Use it on the event loop only."""

    __slots__ = ("_find", "_peers", "deletions", "state")

    def __init__(self, partition: Led, peers: Peers, own_end: int) -> None:
        """`own_end`: the log end offset, or the end of the flushed records while a required flush is pending."""
        # Weak: a reference cycle would keep files of deleted partitions open until the next garbage collection.
        self._find = ref(partition)
        self._peers = peers
        self.state = LeaderState(peers.broker_id, max_lag_ms=peers.max_lag_ms, is_alive=peers.is_alive)
        self.state.own_end = own_end
        self.deletions: Deletions | None = None
        """Deletions of records that wait for followers; None before the first one."""

    @property
    def _partition(self) -> Led:
        partition = self._find()
        assert partition is not None  # the partition is the caller
        return partition

    def lead(self, state: Leadership) -> None:
        """Adopt a state from the controller. Raises KafkaError(kafka_storage_error)."""
        partition = self._partition
        if state.leader_epoch > self.state.leader_epoch:
            # Even without records: a follower may have records of a later epoch than the last one in this log.
            partition.log.begin_epoch(state.leader_epoch)
        if self.state.lead(state, log_end=partition.log.log_end_offset, now_ms=self._peers.now_ms()):
            self._note(partition)

    def fetched(self, replica: int, offset: int, log_start_offset: int, broker_epoch: int) -> None:
        """Record a fetch at `offset`: see `LeaderState.fetched`. Call it before the reply."""
        partition = self._partition
        state = self.state
        now_ms = self._peers.now_ms()
        has_moved = state.fetched(
            replica,
            offset=offset,
            log_start_offset=log_start_offset,
            log_end=partition.log.state.log_end_offset,
            broker_epoch=broker_epoch,
            now_ms=now_ms,
        )
        if replica not in state.isr:
            self._propose(partition, state.expand(replica, partition.high_watermark))
        if has_moved:
            self._commit(partition, now_ms)
        if self.deletions is not None:
            self.deletions.advanced(self.low_watermark())

    def deleted(self, offset: int, timeout_s: float) -> "asyncio.Future[KafkaError | None]":
        """Return a future that is done when all live replicas have deleted the records before `offset`."""
        if self.deletions is None:
            self.deletions = Deletions()
        return self.deletions.wait(offset, timeout_s)

    def low_watermark(self) -> int:
        """Return the lowest log start offset of this replica and its live followers; -1 until all have reported one."""
        partition = self._partition
        return self.state.low_watermark(partition.log.state.log_start_offset)

    def check(self) -> None:
        """Propose to remove lagging followers from the ISR. Call it twice per `replica.lag.time.max.ms`.

        Also complete deletions that waited only for brokers that have left.
        """
        partition = self._partition
        self._propose(partition, self.state.shrink(partition.log.log_end_offset, self._peers.now_ms()))
        self.commit()
        if self.deletions is not None:
            self.deletions.advanced(self.low_watermark())

    def appended(self, own_end: int) -> None:
        """Record a new `own_end` (see `__init__`), and raise the high watermark if possible."""
        self.state.own_end = own_end
        self.commit()

    def commit(self) -> None:
        """Raise the high watermark to the end of the records that all in-sync replicas have."""
        self._commit(self._partition, self._peers.now_ms())

    def _commit(self, partition: Led, now_ms: int) -> None:
        log_state = partition.log.state
        end = self.state.committed_end(
            log_end=log_state.log_end_offset,
            min_insync_replicas=log_state.config.min_insync_replicas,
            now_ms=now_ms,
        )
        if end > partition.high_watermark:
            partition.advance_high_watermark(end)

    def preferred_replica(self, offset: int, rack: str, rack_of: Callable[[int], str | None]) -> int | None:
        """Return the follower that a consumer in `rack` should read `offset` from; None for the leader."""
        return preferred_replica(self.state, offset, rack, leader=self._peers.broker_id, rack_of=rack_of)

    def shortage(self) -> KafkaError | None:
        """Return the error for records with acks=all if too many replicas have left the ISR since the append."""
        partition = self._partition
        required = self.state.required_in_sync(partition.log.config.min_insync_replicas)
        count = len(self.state.maximal_isr)
        if count >= required:
            return None
        return KafkaError(
            ErrorCode.not_enough_replicas_after_append,
            f"{partition.topic_partition} has {count} in-sync replicas after the append; min.insync.replicas requires"
            f" {required}",
        )

    def _propose(self, partition: Led, proposal: Proposal | None) -> None:
        if proposal is not None:
            old, new = sorted(self.state.isr), sorted(proposal.members)
            log.info("%s: changing the in-sync replicas from %s to %s", partition.topic_partition, old, new)
            change = IsrChange(partition.topic_id, partition.topic_partition, proposal)
            self._peers.alter_isr.submit(change, partial(self._answered, proposal))

    def _answered(self, proposal: Proposal, answer: Answer) -> None:
        partition = self._find()
        if partition is None or partition.followers is not self:
            return  # this broker no longer leads it
        if isinstance(answer, ErrorCode):
            if answer is not ErrorCode.operation_not_attempted:
                log.warning(
                    "%s: the controller rejected the change to the in-sync replicas: %s",
                    partition.topic_partition,
                    answer.name,
                )
            if self.state.refused(proposal, answer):
                self._propose(partition, proposal)
            else:
                self.commit()  # the high watermark no longer waits for a replica that may not join
        elif self.state.confirmed(proposal, answer):
            log.info("%s: the in-sync replicas are now %s", partition.topic_partition, list(answer.isr))
            self._note(partition)

    def _note(self, partition: Led) -> None:
        state = self.state
        partition.note_isr(tuple(sorted(state.isr)), state.replica_count, state.partition_epoch)
        self.commit()
