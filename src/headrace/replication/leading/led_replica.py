"""The replica of a leader: in-sync replicas, high watermark, and growth for its followers and readers."""

from typing import Any
from uuid import UUID
from weakref import WeakMethod

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.appends import Completions
from headrace.replication.growth import Growth
from headrace.replication.leading.followers import Followers
from headrace.replication.leading.leader_state import Leadership
from headrace.replication.leading.peers import Peers
from headrace.replication.producer_state import ProducerState
from headrace.replication.replica import Replica
from headrace.storage.files.log_file import FileSlice
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions


class LedReplica(Replica):
    """The leader's replica of a partition. Until `lead` is called, it counts as the only replica."""

    __slots__ = (
        "adding_count",
        "awaits_flush",
        "completions",
        "followers",
        "isr",
        "isr_size",
        "log_growth",
        "partition_epoch",
        "replica_count",
        "replicas",
    )

    def __init__(
        self,
        log: Log,
        *,
        topic_id: UUID,
        leader_epoch: int,
        high_watermark: int,
        producers: ProducerState,
        transactions: OpenTransactions,
    ) -> None:
        super().__init__(
            log,
            topic_id=topic_id,
            leader_epoch=leader_epoch,
            high_watermark=high_watermark,
            producers=producers,
            transactions=transactions,
        )
        log.state.producers_writer = WeakMethod(self.write_producer_snapshot)
        self.isr: tuple[int, ...] = ()
        self.isr_size = 1
        self.replicas: tuple[int, ...] = ()
        self.replica_count = 1
        self.adding_count = 0
        """Number of replicas that a reassignment is adding."""
        self.partition_epoch = -1
        """Version of the partition's state at the controller; -1 before `lead`."""
        self.followers: Followers | None = None
        """None if this broker has the only replica."""
        self.completions: Completions[Any] | None = None
        """Flushes the log if `flush.messages` requires it. If None, the append itself waits for the disk."""
        self.awaits_flush = False
        """True if the high watermark waits for a flush."""
        self.log_growth: Growth[Any] = Growth(self, of_log=True)
        """Watchers of appended records: the fetches of followers."""

    def lead(self, state: Leadership, peers: Peers) -> bool:
        """Adopt a state from the controller, and lead. Return False if it is older than the known one.

        Call it on the event loop. Raises KafkaError(kafka_storage_error).
        """
        if state.partition_epoch < self.partition_epoch:
            return False
        is_update = self.partition_epoch >= 0
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = tuple(state.replicas)
        self.adding_count = len(state.adding_replicas)
        own_end = self.high_watermark if self.awaits_flush else self.log_end_offset
        # After a reassignment to this broker alone, the ISR still has the removed replicas, which might be elected.
        if len(self.replicas) > 1 or not set(state.isr) <= set(self.replicas):
            if self.followers is None:
                self.followers = Followers(self, peers, own_end)
            self.followers.lead(state)
        else:
            self._leave_followers(None)
            self.note_isr(tuple(state.isr), 1, state.partition_epoch)
            if own_end > self.high_watermark:
                self.advance_high_watermark(own_end)
        if is_update:
            # Waiting fetches under the previous leader epoch must fail.
            self.growth.wake_all()
            self.log_growth.wake_all()
        return True

    def _leave_followers(self, error: KafkaError | None) -> None:
        followers, self.followers = self.followers, None
        if followers is not None and followers.deletions is not None:
            followers.deletions.end(error)

    def note_isr(self, isr: tuple[int, ...], replica_count: int, partition_epoch: int) -> None:
        """Record the state that the controller has confirmed. Only `lead` and the followers call this."""
        self.isr = isr
        self.isr_size = len(isr)
        self.replica_count = replica_count
        self.partition_epoch = partition_epoch

    def end_offset_for_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the largest epoch up to `leader_epoch` and its end offset; (-1, -1) if unknown (KIP-101, KIP-279)."""
        epochs = self.log.leader_epochs
        if epochs.latest < leader_epoch < self.leader_epoch:
            # With one replica, only an append records the leader's epoch, which begins here. An unknown epoch would
            # look like a truncation: after each restart, consumers of empty partitions would reset their positions.
            return (epochs.latest if epochs.entries else leader_epoch), self.log_end_offset
        return super().end_offset_for_epoch(leader_epoch)

    @property
    def low_watermark(self) -> int:
        """The lowest log start offset of all live replicas (KIP-107); -1 until all of them have reported theirs."""
        return self.log_start_offset if self.followers is None else self.followers.low_watermark()

    def read_as_follower(self, replica: int, offset: int, max_bytes: int, *, min_one_batch: bool) -> FileSlice | None:
        """Like `read`, up to the log end. Raises KafkaError(unknown_leader_epoch) unless `replica` is a follower."""
        self.follower(replica)
        return self._read(offset, max_bytes, self.log.state.log_end_offset, min_one_batch=min_one_batch)

    def fetched_by(self, replica: int, offset: int, log_start_offset: int, broker_epoch: int) -> None:
        """Record a follower's fetch at `offset`, its log end offset. Call it before the reply.

        Raises KafkaError: unknown_leader_epoch unless `replica` is a follower, not_leader_or_follower for an old
        broker epoch.
        """
        self.follower(replica).fetched(replica, offset, log_start_offset, broker_epoch)

    def follower(self, replica: int) -> Followers:
        """Return the followers. Raises KafkaError(unknown_leader_epoch) unless `replica` is one of them."""
        followers = self.followers
        if followers is None or replica not in followers.state.followers:
            raise KafkaError(
                ErrorCode.unknown_leader_epoch, f"broker {replica} has no replica of {self.topic_partition}"
            )
        return followers

    def advance_high_watermark(self, high_watermark: int) -> None:
        """Make the records before `high_watermark` visible to consumers, and answer their producers."""
        self.high_watermark = high_watermark
        self.transactions.committed_to(high_watermark)
        if self.growth.watchers:
            self.growth.report()
        if self.completions is not None:
            self.completions.advanced(self)

    def fail_waits(self, error: KafkaError) -> None:
        """Fail all waits: this broker no longer serves the partition."""
        self._leave_followers(error)
        self.growth.wake_all()
        self.log_growth.wake_all()
        if self.completions is not None:
            self.completions.refuse(self, error)

    def check_in_sync(self) -> None:
        """Check that acks=all has enough in-sync replicas: `min.insync.replicas`, but at most all replicas (KIP-966).

        Raises KafkaError(not_enough_replicas).
        """
        required = min(self.log.config.min_insync_replicas, self.replica_count)
        if self.isr_size < required:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"{self.topic_partition} has {self.isr_size} in-sync replicas; min.insync.replicas requires {required}",
            )
