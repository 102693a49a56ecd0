"""Open, create, delete and maintain the partitions on this broker, led or followed."""

import logging
import threading
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from headrace.clock import now_ms
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.appends import Completions, OfflineError
from headrace.replication.leading.peers import Peers
from headrace.replication.partition import Partition
from headrace.replication.producer_recovery import recover_producers
from headrace.replication.replica import OpenedLog, Replica
from headrace.slices import Steps
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.storage.log.indexes.index import CorruptIndexError
from headrace.storage.log.log import Log
from headrace.types import PartitionState, TopicPartition

if TYPE_CHECKING:
    from headrace.replication.following.partition import FollowedPartition

_NEVER_MS: Final = 2**63 - 1
_SHORTEST_FLUSH_MS: Final = 10

log = logging.getLogger(__name__)


class ReplicaManager:
    """The partitions of this broker."""

    def __init__(
        self,
        log_dirs: LogDirs,
        config_of: Callable[[str], LogConfig],
        completions: Completions[Partition] | None = None,
    ) -> None:
        """`config_of` returns a topic's config. Without `completions`, appends wait for the disk."""
        self.log_dirs = log_dirs
        self._completions = completions
        self.shortest_flush_ms = _NEVER_MS
        self._config_of = config_of
        self._checkpointing = threading.Lock()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._followed: dict[tuple[str, int], FollowedPartition] = {}
        self._opened: dict[TopicPartition, OpenedLog] = {}
        self.exists: Callable[[TopicPartition], bool] = lambda _: False
        """Returns True for a partition that the cluster has, perhaps on other brokers."""
        self.peers: Peers | None = None
        """The other brokers; None for a cluster of one broker."""
        self._offline: dict[TopicPartition, str] = {}
        self._reported_damage: set[str] = set()
        self._reconfigurations = 0
        """The number of changes of topics' configs."""
        self.name_of: Callable[[UUID], str | None] = lambda _: None
        """Returns the name of the topic with this id; None if the cluster has no such topic."""
        self.misses_logs = False
        """True if the log of an existing partition is missing."""

    def get(self, topic: str, partition: int) -> Partition:
        """Return the partition that this broker leads.

        Raises KafkaError: kafka_storage_error (offline), not_leader_or_follower, unknown_topic_or_partition.
        """
        try:
            return self._partitions[topic, partition]
        except KeyError:
            topic_partition = TopicPartition(topic, partition)
            if (reason := self._offline.get(topic_partition)) is not None:
                raise OfflineError(topic, partition, reason) from None
            if topic_partition in self._followed or self.exists(topic_partition):
                raise _not_leader(topic_partition) from None
            message = f"this broker has no partition {topic}-{partition}"
            raise KafkaError(ErrorCode.unknown_topic_or_partition, message) from None

    def readable(self, topic: str, partition: int) -> Replica:
        """Return the partition, led or followed (KIP-392). Raises KafkaError as `get` does."""
        key = topic, partition
        return self._partitions.get(key) or self._followed.get(key) or self.get(topic, partition)

    def find(self, topic: str, partition: int) -> Partition | None:
        """Return the partition; None if this broker does not lead it or it is offline."""
        return self._partitions.get((topic, partition))

    def partitions(self) -> tuple[Partition, ...]:
        """Return the partitions that this broker leads; a thread may be opening more."""
        return tuple(self._partitions.values())

    def followed(self) -> "tuple[FollowedPartition, ...]":
        return tuple(self._followed.values())

    def hosted(self) -> "tuple[Partition | FollowedPartition, ...]":
        """Return the partitions that this broker leads or follows."""
        return (*self._partitions.values(), *self._followed.values())

    def _with_waiting(self) -> "tuple[Partition | FollowedPartition | OpenedLog, ...]":
        """Return the partitions in `hosted`, and the open logs of partitions whose leaders are dead."""
        return (*self.hosted(), *self._opened.values())

    @property
    def offline_count(self) -> int:
        return len(self._offline)

    # Leading and following

    def become_leader(
        self, topic_partition: TopicPartition, topic_id: UUID, leader_epoch: int, *, is_new: bool = True
    ) -> Partition:
        """Open or create the log of a partition with one replica, and lead it under `leader_epoch`.

        Raises KafkaError as `open` does.
        """
        self.open(topic_partition, topic_id, is_new=is_new)
        return self._lead(topic_partition, leader_epoch)

    def check(self, state: PartitionState) -> ErrorCode:
        """Check a state from LeaderAndIsr. Return `none` if this broker must adopt it, otherwise the error."""
        topic_partition = TopicPartition(state.topic, state.partition)
        if topic_partition in self._offline:
            return ErrorCode.kafka_storage_error
        hosted = self._hosted(topic_partition)
        known = hosted or self._opened.get(topic_partition)
        topic_id = None if known is None else known.topic_id
        if known is None and topic_partition in self.log_dirs.logs:  # kept by `Commands.resign_moved`
            topic_id = self.log_dirs.found.stated_topic_id(topic_partition)
        if topic_id not in (None, state.topic_id):
            return ErrorCode.inconsistent_topic_id
        # An equal epoch is a repeated request: the controller did not get the reply to the first one.
        is_newer = hosted is None or state.leader_epoch > hosted.leader_epoch
        return ErrorCode.none if is_newer else ErrorCode.stale_controller_epoch

    def check_stop(self, topic_partition: TopicPartition, leader_epoch: int) -> ErrorCode:
        """Check a StopReplica; a negative `leader_epoch` overrides all others (KIP-570). Return `none` or the error."""
        if self.log_dirs.has_failed(topic_partition):
            return ErrorCode.kafka_storage_error
        hosted = self._hosted(topic_partition)
        if hosted is not None and 0 <= leader_epoch < hosted.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        return ErrorCode.none

    def open(self, topic_partition: TopicPartition, topic_id: UUID, *, is_new: bool) -> None:
        """Open the log, or create it; call `lead` or `follow` afterwards. Waits for the disk: call it in a thread.

        If the partition is not new, it had a log: no empty one is created if that may be in an offline directory.
        Raises KafkaError: kafka_storage_error, or inconsistent_topic_id for the directory of another topic.
        """
        if self._hosted(topic_partition) is not None or topic_partition in self._opened:
            return
        # The config of a kept log may be outdated; that of another log may change before it is led or followed.
        configured = -1 if topic_partition in self.log_dirs.logs else self._reconfigurations
        try:
            opened = self.log_dirs.logs.get(topic_partition) or self._open_log(topic_partition, topic_id, is_new=is_new)
            high_watermark = self.log_dirs.high_watermark(topic_partition)
            producers, transactions = recover_producers(opened, high_watermark)
        except KafkaError as error:
            self._offline[topic_partition] = str(error)
            raise
        except OSError as error:
            self._offline[topic_partition] = str(error)
            self.log_dirs.note_failure(self.log_dirs.place_of(topic_partition), error)
            raise KafkaError(ErrorCode.kafka_storage_error, f"the log cannot be read: {error}") from error
        self._offline.pop(topic_partition, None)
        self._note_flush_ms(opened.config)
        self._opened[topic_partition] = OpenedLog(opened, topic_id, producers, transactions, high_watermark, configured)

    def lead(self, state: PartitionState) -> Partition:
        """Lead a partition, after `open`. Its fetcher must have stopped appending. Raises KafkaError if it fails."""
        topic_partition = TopicPartition(state.topic, state.partition)
        is_only_replica = {*state.replicas, *state.isr} == {state.leader}
        partition = self._lead(topic_partition, state.leader_epoch, is_only_replica=is_only_replica)
        if self.peers is not None:
            try:
                partition.lead(state, self.peers)
            except KafkaError as error:
                self.give_up(partition, str(error))
                raise
        return partition

    def follow(self, state: PartitionState) -> "FollowedPartition":
        """Follow a partition, after `open`. Raises KafkaError(kafka_storage_error) if it is offline."""
        from headrace.replication.following.partition import FollowedPartition

        topic_partition = TopicPartition(state.topic, state.partition)
        followed = self._followed.get(topic_partition)
        if followed is not None:
            followed.leader, followed.leader_epoch = state.leader, state.leader_epoch
            return followed
        led = self._partitions.pop(topic_partition, None)
        if led is not None:
            led.fail_waits(_not_leader(topic_partition))
        source = led or self._take_opened(topic_partition)
        followed = FollowedPartition(
            source.log,
            topic_id=source.topic_id,
            leader=state.leader,
            leader_epoch=state.leader_epoch,
            high_watermark=source.high_watermark,
            producers=source.producers,
            transactions=source.transactions,
        )
        self._followed[topic_partition] = followed
        return followed

    def _lead(self, topic_partition: TopicPartition, leader_epoch: int, *, is_only_replica: bool = True) -> Partition:
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            partition.leader_epoch = leader_epoch
            return partition
        followed = self._unfollow(topic_partition)
        source = followed or self._take_opened(topic_partition)
        high_watermark = None
        if not is_only_replica:
            high_watermark = max(source.log.log_start_offset, min(source.high_watermark, source.log.log_end_offset))
        else:
            source.transactions.committed_to(source.log.log_end_offset)
        if is_only_replica and source.transactions.first_offset is not None:
            log.warning(
                "%s has open transactions (%d); the oldest begins at offset %d, and read_committed consumers cannot"
                " read past it until the transaction ends. If it never ends, see `headrace transactions find-hanging`",
                topic_partition,
                len(source.transactions),
                source.transactions.first_offset,
            )
        partition = Partition(
            source.log,
            topic_id=source.topic_id,
            leader_epoch=leader_epoch,
            producers=source.producers,
            transactions=source.transactions,
            high_watermark=high_watermark,
        )
        partition.completions = self._completions
        self._partitions[topic_partition] = partition
        return partition

    def _take_opened(self, topic_partition: TopicPartition) -> OpenedLog:
        reason = self._offline.get(topic_partition)
        if reason is not None:  # its directory has failed since `open`
            raise OfflineError(*topic_partition, reason)
        opened = self._opened.pop(topic_partition)
        if opened.configured != self._reconfigurations:
            opened.log.configure(self._config_of(topic_partition.topic))
        self._note_flush_ms(opened.log.config)
        return opened

    def _unfollow(self, topic_partition: TopicPartition) -> "FollowedPartition | None":
        followed = self._followed.pop(topic_partition, None)
        if followed is not None:
            followed.growth.wake_all()
        return followed

    def _hosted(self, topic_partition: TopicPartition) -> "Partition | FollowedPartition | None":
        return self._partitions.get(topic_partition) or self._followed.get(topic_partition)

    def give_up(self, partition: "Partition | FollowedPartition", reason: str) -> bool:
        """Take offline a partition whose disk has failed, until a restart. Return False if it was not online."""
        topic_partition = partition.topic_partition
        if self._hosted(topic_partition) is not partition:
            return False  # deleted, or offline already
        self._take_offline(partition, reason)
        self.log_dirs.abandon(topic_partition)
        log.error(
            "%s is offline: %s. Unacknowledged records may be lost: check the disk, then restart the broker",
            topic_partition,
            reason,
        )
        return True

    def _take_offline(self, partition: "Partition | FollowedPartition", reason: str) -> None:
        topic_partition = partition.topic_partition
        self._offline[topic_partition] = reason
        if isinstance(partition, Partition):
            del self._partitions[topic_partition]
            partition.fail_waits(OfflineError(*topic_partition, reason))
        else:
            self._unfollow(topic_partition)

    def failed(self) -> "list[tuple[Partition | FollowedPartition, str]]":
        """Return the partitions whose logs could not be flushed, and the reasons."""
        failures = [(partition, partition.log.flusher.flush_failure) for partition in self.hosted()]
        return [(partition, reason) for partition, reason in failures if reason is not None]

    def _open_log(self, topic_partition: TopicPartition, topic_id: UUID, *, is_new: bool) -> Log:
        config = self._config_of(topic_partition.topic)
        if topic_partition not in self.log_dirs.partitions():
            reason = None if is_new else self.log_dirs.owned.why_a_log_may_be_elsewhere()
            if reason is not None:
                self.misses_logs = True
                raise KafkaError(ErrorCode.kafka_storage_error, f"no working log directory has the log, and {reason}")
            return self.log_dirs.create(topic_partition, topic_id, config, now_ms=now_ms())
        found_id = self.log_dirs.found.topic_id(topic_partition)
        if found_id is None:
            self.log_dirs.found.note_topic_id(topic_partition, topic_id)
        elif found_id != topic_id:
            raise self.log_dirs.found.other_topic(topic_partition, topic_id, self.name_of(found_id))
        return self.log_dirs.load(topic_partition, config, now_ms=now_ms())

    def withdraw(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Stop serving the partitions. Return those whose files have to be deleted."""
        withdrawn = []
        for topic_partition in partitions:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                deleted = KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic_partition} has been deleted")
                partition.fail_waits(_not_leader(topic_partition) if self.exists(topic_partition) else deleted)
            self._unfollow(topic_partition)
            self._opened.pop(topic_partition, None)
            self._offline.pop(topic_partition, None)
            # even if it is not hosted, because the topic may have been deleted while this broker was down
            if topic_partition in self.log_dirs.partitions():
                withdrawn.append(topic_partition)
        return withdrawn

    def delete_files(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, ErrorCode]:
        """Delete the files of withdrawn partitions after `file.delete.delay.ms`, and return the errors.

        Slow: call it in a thread.
        """
        errors = {}
        for topic_partition in partitions:
            try:
                self.log_dirs.delete(topic_partition, now_ms=now_ms())
            except KafkaError as error:
                log.error("The files of %s cannot be deleted: %s", topic_partition, error)
                errors[topic_partition] = error.code
        return errors

    def reconfigure(self, topics: Container[str]) -> Steps[None]:
        """Apply the current configs to the topics' logs."""
        configs: dict[str, LogConfig] = {}
        self._reconfigurations += 1
        for partition in self._with_waiting():
            topic = partition.log.topic_partition.topic
            if topic not in topics:
                continue
            config = configs.get(topic)
            if config is None:
                config = configs[topic] = self._config_of(topic)
                self._note_flush_ms(config)
            partition.log.configure(config)
            yield

    def _note_flush_ms(self, config: LogConfig) -> None:
        self.shortest_flush_ms = min(self.shortest_flush_ms, max(config.flush_ms, _SHORTEST_FLUSH_MS))

    def take_offline(self, directory: Path, why: str) -> list[TopicPartition]:
        """Take the partitions in a failed log directory offline, and return them."""
        affected = [partition for partition in self.hosted() if partition.log.directory.parent == directory]
        reason = f"log directory {directory} has failed: {why}"
        for partition in affected:
            self._take_offline(partition, reason)
        for topic_partition, opened in tuple(self._opened.items()):
            if opened.log.directory.parent == directory:
                self._offline[topic_partition] = reason
                del self._opened[topic_partition]
        return [partition.topic_partition for partition in affected]

    def refuse_records(self, directory: Path, reason: str | None) -> None:
        """Refuse records from clients in the partitions of a log directory, with this reason; None accepts them again.

        Call it again for partitions that are created or moved there later.
        """
        for partition in self.partitions():
            if partition.log.directory.parent == directory:
                partition.refusal = reason

    def report_damage(self, error: KafkaError) -> None:
        """Log a damaged segment (corrupt_message) or index once, and not for every client."""
        is_damage = error.code is ErrorCode.corrupt_message or isinstance(error.__cause__, CorruptIndexError)
        if is_damage and str(error) not in self._reported_damage:
            self._reported_damage.add(str(error))
            log.error("%s", error)

    # Upkeep, called at intervals

    def apply_retention(self) -> Steps[None]:
        """Delete segments past their retention, one log per step. A failure of one log does not affect the others."""
        for partition in self._with_waiting():
            topic_partition = partition.log.topic_partition
            # unless it was deleted, or its leader changed, since the first step
            if partition in (self._hosted(topic_partition), self._opened.get(topic_partition)):
                try:
                    partition.log.apply_retention(now_ms(), partition.high_watermark)
                except KafkaError as error:
                    log.error("Retention of %s failed and will be retried: %s", topic_partition, error)
            yield

    def expire_producers(self, expiration_ms: int) -> None:
        """Remove producers that have written nothing for `expiration_ms` and have no open transaction."""
        for partition in self.hosted():
            partition.producers.expire(now_ms(), expiration_ms, partition.transactions)

    def flush_due(self) -> None:
        """Flush the logs whose `flush.ms` has passed. Waits for the disk: call it in a thread.

        `failed` returns the partitions whose flush cannot be retried.
        """
        if self.shortest_flush_ms == _NEVER_MS:
            return
        now = now_ms()
        self.shortest_flush_ms = _NEVER_MS  # before the slow flushes: other threads may note a shorter time meanwhile
        hosted = self.hosted()
        for partition in hosted:
            self._note_flush_ms(partition.log.config)
        for partition in hosted:
            if partition.log.flusher.flush_due(now):
                try:
                    partition.log.flusher.flush(now)
                except KafkaError as error:
                    log.error("A flush that was due by flush.ms failed: %s", error)

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets and high watermarks. Waits for the disk: call it in a thread.

        Raises KafkaError(kafka_storage_error).
        """
        with self._checkpointing:
            self.log_dirs.checkpoint(self._high_watermarks())

    def close(self) -> None:
        """Close every log and mark the shutdown as clean."""
        for partition in self._with_waiting():
            # Even without producers: without a snapshot, a start reads the headers of the whole log.
            if end_offset := partition.log.log_end_offset:
                partition.log.state.write_producer_snapshot(end_offset)
        self.log_dirs.close(self._high_watermarks())
        self._partitions.clear()
        self._followed.clear()

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {partition.topic_partition: partition.high_watermark for partition in self.hosted()}


def _not_leader(topic_partition: TopicPartition) -> KafkaError:
    return KafkaError(ErrorCode.not_leader_or_follower, f"this broker does not lead {topic_partition}")
