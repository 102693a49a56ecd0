"""Read the log of a partition for a consumer or a follower."""

import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.broker.apis.answer_cache import AnswerCache
from headrace.broker.apis.fetch_answers import SHARED_BYTES, Answered, Copied, Part
from headrace.broker.current_leader import CurrentLeader, LeaderOf
from headrace.broker.fetch_session import FetchPartition
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.leading.led_replica import LedReplica
from headrace.replication.partition import Partition
from headrace.replication.replica import Replica
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.throttle import UNLIMITED, ReplicationThrottle

_REPLICA_STATE: Final = 15
_LEADER_AND_ONE: Final = 2
_CACHED_BYTES: Final = 8 * 1024 * 1024
"""Size of the cache of records that in-sync followers share, in bytes."""


class Follower(NamedTuple):
    """The broker that sends a fetch; epoch -1 if the request does not contain it (KIP-903)."""

    broker_id: int
    broker_epoch: int


def follower_of(request: Any, version: int) -> Follower | None:
    """Return the broker that sends a request; None for a consumer."""
    if version < _REPLICA_STATE:
        broker_id, broker_epoch = request.replica_id, -1
    else:
        broker_id, broker_epoch = request.replica_state.replica_id, request.replica_state.replica_epoch
    return Follower(broker_id, broker_epoch) if broker_id >= 0 else None


def _divergence(partition: Replica, wanted: FetchPartition) -> tuple[int, int] | None:
    """Return the last common leader epoch and its end offset if the client's log has diverged (KIP-595).

    Raises KafkaError(offset_out_of_range) for an unknown epoch, or for an offset before the log start offset.
    """
    if wanted.last_fetched_epoch < 0:
        return None
    state = partition.log.state
    if wanted.last_fetched_epoch == partition.leader_epoch and (
        state.log_start_offset <= wanted.fetch_offset <= state.log_end_offset
    ):
        return None
    epoch, end = partition.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0 or wanted.fetch_offset < state.log_start_offset:
        raise KafkaError(ErrorCode.offset_out_of_range)
    return (epoch, end) if epoch < wanted.last_fetched_epoch or end < wanted.fetch_offset else None


class FetchReads:
    """Reads the logs of partitions for Fetch requests of consumers and followers."""

    def __init__(
        self,
        replicas: ReplicaManager,
        topic_name: Callable[[UUID | None], str | None],
        *,
        throttle: ReplicationThrottle | None = None,
        rack_of: Callable[[int], str | None] | None = None,
        leader_of: LeaderOf | None = None,
    ) -> None:
        """`throttle` limits the reads of followers outside the ISR. With `rack_of`, consumers are redirected to
        followers in their rack; `rack_of` returns None for a broker that is down or has no rack.
        """
        self._replicas = replicas
        self._topic_name = topic_name
        self._throttle = throttle
        self._rack_of = rack_of
        self._leader_of = leader_of
        self._shared: AnswerCache[Copied] = AnswerCache(_CACHED_BYTES)

    def read(
        self,
        wanted: FetchPartition,
        max_bytes: int,
        *,
        read_committed: bool,
        min_one_batch: bool,
        rack: str = "",
        may_follow: bool = False,
        with_aborted: bool = True,
    ) -> Answered:
        """Return the available data of a partition for a consumer in `rack`, or the error.

        `may_follow`: the consumer supports reading from followers (KIP-392). `with_aborted`: look up the aborted
        transactions for read_committed, which a reply needs, but not the size of the data.
        """
        partition: Replica | None = None
        try:
            find = self._replicas.readable if may_follow else self._replicas.get
            partition = find(self._name_of(wanted), wanted.index)
            partition.check_leader_epoch(wanted.current_leader_epoch)
            if rack and self._rack_of is not None and self._redirects(wanted, partition, rack, self._rack_of):
                return wanted, ErrorCode.none, partition, None, None, ()
            diverging = _divergence(partition, wanted)
            if diverging is not None:
                return wanted, ErrorCode.none, partition, None, diverging, ()
            part = partition.read(
                wanted.fetch_offset,
                min(max_bytes, wanted.max_bytes),
                read_committed=read_committed,
                min_one_batch=min_one_batch,
            )
            if read_committed and part is not None and with_aborted:
                aborted = partition.log.reader.aborted_transactions(wanted.fetch_offset, part)
                return wanted, ErrorCode.none, partition, part, None, aborted
        except KafkaError as error:
            self._replicas.report_damage(error)
            return wanted, error.code, partition, None, None, ()
        return wanted, ErrorCode.none, partition, part, None, ()

    def read_as_follower(
        self, wanted: FetchPartition, max_bytes: int, follower: Follower, *, is_new: bool, min_one_batch: bool
    ) -> Answered:
        """Like `read`, for a follower.

        With `is_new`, record the fetch offset as the follower's log end offset, which may raise the high watermark.
        """
        partition: Partition | None = None
        try:
            partition = self._replicas.get(self._name_of(wanted), wanted.index)
            if wanted.current_leader_epoch != partition.leader_epoch:
                partition.check_leader_epoch(wanted.current_leader_epoch)
            # Python compares and hashes UUIDs slowly.
            if isinstance(wanted.topic, UUID) and wanted.topic.int != partition.topic_id.int:
                raise KafkaError(ErrorCode.inconsistent_topic_id)
            diverging = _divergence(partition, wanted)
            if diverging is not None:
                return wanted, ErrorCode.none, partition, None, diverging, ()
            max_bytes = min(max_bytes, wanted.max_bytes)
            if wanted.fetch_offset == partition.log.state.log_end_offset:
                part = None
                partition.follower(follower.broker_id)
            elif follower.broker_id in partition.isr:
                part = self._shared_part(partition, follower.broker_id, wanted.fetch_offset, max_bytes, min_one_batch)
            else:
                part = partition.read_as_follower(
                    follower.broker_id, wanted.fetch_offset, max_bytes, min_one_batch=min_one_batch
                )
            if is_new:
                partition.fetched_by(
                    follower.broker_id, wanted.fetch_offset, wanted.log_start_offset, follower.broker_epoch
                )
            throttle = self._throttle
            if part is not None and throttle is not None and throttle.rate != UNLIMITED:
                part = None if self.is_throttled(partition, follower) else part
        except KafkaError as error:
            self._replicas.report_damage(error)
            return wanted, error.code, partition, None, None, ()
        return wanted, ErrorCode.none, partition, part, None, ()

    def _shared_part(
        self, partition: Partition, replica: int, offset: int, max_bytes: int, min_one_batch: bool
    ) -> Part | None:
        """Like `LedReplica.read_as_follower`, but in-sync followers share one read: they fetch the same records.

        The records were just written, so they are in the page cache.
        """
        state = partition.log.state
        end = state.log_end_offset
        key = (
            partition.topic_partition,
            partition.topic_id.int,
            partition.leader_epoch,
            state.truncations,
            state.log_start_offset,
            offset,
            end,
            max_bytes,
            min_one_batch,
        )
        shared = self._shared.get(key, None)
        if shared is not None:
            partition.follower(replica)
            return shared
        part = partition.read_as_follower(replica, offset, max_bytes, min_one_batch=min_one_batch)
        if part is None or part.size > SHARED_BYTES:
            return part
        copied = Copied(part.read(), part.size)
        if len(copied.data) != part.size:
            return part  # the log has been truncated
        if partition.replica_count > _LEADER_AND_ONE:
            self._shared.put(key, None, copied, part.size)
        return copied

    def leaders_of(self, answers: Iterable[Answered], listener: str) -> dict[FetchPartition, CurrentLeader]:
        """Return the leaders of partitions that this broker does not lead, or leads under a newer epoch (KIP-951)."""
        found: dict[FetchPartition, CurrentLeader] = {}
        if self._leader_of is not None:
            for wanted, error, _, _, _, _ in answers:
                if error in (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch):
                    name = wanted.topic if isinstance(wanted.topic, str) else self._topic_name(wanted.topic)
                    leader = None if name is None else self._leader_of(name, wanted.index, listener)
                    if leader is not None:
                        found[wanted] = leader
        return found

    def is_throttled(self, partition: Replica, follower: Follower) -> bool:
        """Return True if the partition is throttled, the rate exceeded, and the follower outside the ISR (KIP-73)."""
        throttle = self._throttle
        return (
            throttle is not None
            and isinstance(partition, LedReplica)
            and throttle.is_throttled(partition.topic_partition)
            and follower.broker_id not in partition.isr
            and throttle.is_exceeded(time.monotonic())
        )

    def sent(self, answers: Iterable[Answered]) -> None:
        """Count the bytes of throttled partitions in a reply to a follower."""
        throttle = self._throttle
        if throttle is not None and throttle.rate != UNLIMITED:
            size = sum(
                part.size
                for _, _, partition, part, _, _ in answers
                if part is not None and partition is not None and throttle.is_throttled(partition.topic_partition)
            )
            if size:
                throttle.record(size, time.monotonic())

    @staticmethod
    def _redirects(wanted: FetchPartition, partition: Replica, rack: str, rack_of: Callable[[int], str | None]) -> bool:
        """Set the replica that the consumer should read from. Return True if it is a follower."""
        wanted.preferred_replica = -1
        if isinstance(partition, LedReplica) and partition.followers is not None:
            preferred = partition.followers.preferred_replica(wanted.fetch_offset, rack, rack_of)
            if preferred is not None:
                wanted.preferred_replica = preferred
        return wanted.preferred_replica >= 0

    def _name_of(self, wanted: FetchPartition) -> str:
        name = wanted.topic if isinstance(wanted.topic, str) else self._topic_name(wanted.topic)
        if name is None:
            raise KafkaError(ErrorCode.unknown_topic_id)
        return name
