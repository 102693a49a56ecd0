"""The partitions on this broker: opened, created, deleted and kept, over the log directories they live in."""

import logging
import threading
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Final
from uuid import UUID

from headrace.clock import now_ms
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.appends import Completions
from headrace.replication.partition import Partition
from headrace.replication.producer_state import ProducerState
from headrace.slices import Steps
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.partition_dir import stray_advice
from headrace.storage.log.config import LogConfig
from headrace.storage.log.log import Log
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.storage.log.producers.producer_snapshot import CorruptSnapshotError, read_snapshot, snapshots
from headrace.storage.log.producers.txn_recovery import control_record
from headrace.types import TopicPartition
from headrace.wire.control import coordinator_epoch_of, marker_of

_NEVER_MS: Final = 2**63 - 1
_SHORTEST_FLUSH_MS: Final = 10
_RECALLED_INDEX_ENTRIES: Final = 128
"""Each stands for a batch, or for several small ones: enough for what producers have in flight."""

log = logging.getLogger(__name__)


class OfflineError(KafkaError):
    """The partition has been offline for a while, which the log has told."""

    def __init__(self, topic: str, partition: int, why: str) -> None:
        super().__init__(ErrorCode.kafka_storage_error, f"{topic}-{partition} is offline: {why}")


class ReplicaManager:
    """Finds the partition of a request, and looks after all of them."""

    def __init__(
        self,
        log_dirs: LogDirs,
        config_of: Callable[[str], LogConfig],
        completions: Completions[Partition] | None = None,
    ) -> None:
        """`config_of` gives the settings in force for a topic. Without `completions` appends wait for the disk."""
        self.log_dirs = log_dirs
        self._completions = completions
        self.shortest_flush_ms = _NEVER_MS
        self._config_of = config_of
        self._checkpointing = threading.Lock()
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._offline: dict[TopicPartition, str] = {}
        self._told: set[str] = set()
        self._name_of: Callable[[UUID], str | None] = lambda _: None
        self.misses_logs = False
        """Whether a partition has no log where it should have one."""

    def get(self, topic: str, partition: int) -> Partition:
        """The partition. Raises KafkaError: unknown_topic_or_partition; kafka_storage_error where it is offline."""
        try:
            return self._partitions[topic, partition]
        except KeyError:
            why = self._offline.get(TopicPartition(topic, partition))
            if why is not None:
                raise OfflineError(topic, partition, why) from None
            raise KafkaError(
                ErrorCode.unknown_topic_or_partition, f"this broker has no partition {topic}-{partition}"
            ) from None

    def find(self, topic: str, partition: int) -> Partition | None:
        """The partition, if this broker leads it and it is not offline."""
        return self._partitions.get((topic, partition))

    def partitions(self) -> tuple[Partition, ...]:
        """All partitions on this broker, as of now: others may be opened in a thread meanwhile."""
        return tuple(self._partitions.values())

    def set_strays_aside(
        self,
        topic_id_of: Callable[[TopicPartition], UUID | None],
        *,
        name_of: Callable[[UUID], str | None] = lambda _: None,
        is_new: Callable[[TopicPartition], bool] = lambda _: True,
    ) -> None:
        """Take directories that belong to no partition of the cluster out of the way, with a warning for each.

        `topic_id_of` says None for a partition that the cluster does not have, `name_of` names the topic with an id,
        and `is_new` says whether a partition was created since the last start. What a crash in the middle of a deletion
        leaves behind ends here. A directory that names another topic is left where it is otherwise, and its partition
        offline: an empty log must not take its place. Raises KafkaError(kafka_storage_error).
        """
        self._name_of = name_of
        for topic_partition in tuple(self.log_dirs.partitions()):
            wanted = topic_id_of(topic_partition)
            found = self.log_dirs.found.stated_topic_id(topic_partition)
            if wanted is not None:
                if found is None or found == wanted:
                    continue
                # a topic that was deleted and created again just before a crash
                is_left_over = is_new(topic_partition) and name_of(found) is None
                if not is_left_over or self.log_dirs.was_clean(topic_partition):
                    continue
            path = self.log_dirs.set_aside(topic_partition)
            log.warning("The cluster has no %s with topic id %s. %s", topic_partition, found, stray_advice(path))

    def become_leader(
        self, topic_partition: TopicPartition, topic_id: UUID, leader_epoch: int, *, is_new: bool = True
    ) -> Partition:
        """Open the partition's log, or make one, and lead it under `leader_epoch`.

        Without `is_new` the partition has had a log, which may be in a directory that is offline: none is made then.
        Raises KafkaError: kafka_storage_error; inconsistent_topic_id for a directory left by another topic.
        """
        partition = self._partitions.get(topic_partition)
        if partition is not None:
            partition.leader_epoch = leader_epoch
            return partition
        try:
            opened = self.log_dirs.logs.get(topic_partition) or self._open_log(topic_partition, topic_id, is_new=is_new)
            producers, transactions = _producer_state_of(opened)
        except KafkaError as error:
            self._offline[topic_partition] = str(error)
            raise
        except OSError as error:
            self._offline[topic_partition] = str(error)
            self.log_dirs.note_failure(self.log_dirs.place_of(topic_partition), error)
            raise KafkaError(ErrorCode.kafka_storage_error, f"its log cannot be read: {error}") from error
        self._offline.pop(topic_partition, None)
        if transactions.first_offset is not None:
            log.warning(
                "%s has %d open transactions, the oldest since offset %d: consumers of committed records wait there",
                topic_partition,
                len(transactions),
                transactions.first_offset,
            )
        partition = Partition(
            opened, topic_id=topic_id, leader_epoch=leader_epoch, producers=producers, transactions=transactions
        )
        partition.completions = self._completions
        self._note_flush_ms(opened.config)
        self._partitions[topic_partition] = partition
        return partition

    def give_up(self, partition: Partition, why: str) -> bool:
        """Serve a partition no more whose disk has failed; whether it was served. A restart recovers its log."""
        topic_partition = partition.topic_partition
        if self._partitions.get(topic_partition) is not partition:
            return False  # deleted, or offline already
        del self._partitions[topic_partition]
        self._offline[topic_partition] = why
        self.log_dirs.abandon(topic_partition)
        log.error(
            "%s is offline: %s. What was not acknowledged may be lost: check the disk, then restart the broker",
            topic_partition,
            why,
        )
        partition.gone(OfflineError(*topic_partition, why))
        return True

    def failed(self) -> list[tuple[Partition, str]]:
        """Partitions whose logs a flush has failed to bring to the disk, and why."""
        return [
            (partition, partition.log.flusher.flush_failure)
            for partition in self.partitions()
            if partition.log.flusher.flush_failure is not None
        ]

    def _open_log(self, topic_partition: TopicPartition, topic_id: UUID, *, is_new: bool) -> Log:
        config = self._config_of(topic_partition.topic)
        if topic_partition not in self.log_dirs.partitions():
            why = None if is_new else self.log_dirs.owned.why_a_log_may_be_elsewhere()
            if why is not None:
                self.misses_logs = True
                raise KafkaError(ErrorCode.kafka_storage_error, f"its log is in no log directory that works, and {why}")
            return self.log_dirs.create(topic_partition, topic_id, config, now_ms=now_ms())
        found_id = self.log_dirs.found.topic_id(topic_partition)
        if found_id is None:
            self.log_dirs.found.note_topic_id(topic_partition, topic_id)
        elif found_id != topic_id:
            raise self.log_dirs.found.other_topic(topic_partition, topic_id, self._name_of(found_id))
        return self.log_dirs.load(topic_partition, config, now_ms=now_ms())

    def withdraw(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Stop serving the partitions; those whose files are then to be deleted."""
        doomed = []
        for topic_partition in partitions:
            partition = self._partitions.pop(topic_partition, None)
            if partition is not None:
                partition.gone(KafkaError(ErrorCode.unknown_topic_or_partition, f"{topic_partition} has been deleted"))
                doomed.append(topic_partition)
            elif self._offline.pop(topic_partition, None) and topic_partition in self.log_dirs.partitions():
                doomed.append(topic_partition)
        return doomed

    def delete_files(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the files of partitions that are not served any more go after `file.delete.delay.ms`.

        Takes some time: call it in a thread.
        """
        for topic_partition in partitions:
            self._delete_files(topic_partition)

    def _delete_files(self, topic_partition: TopicPartition) -> None:
        """One partition whose disk fails does not keep the others of its topic; the next start sets it aside."""
        try:
            self.log_dirs.delete(topic_partition, now_ms=now_ms())
        except KafkaError as error:
            log.error("The files of %s cannot be deleted now: %s", topic_partition, error)

    def reconfigure(self, topics: Container[str]) -> Steps[None]:
        """Apply the settings now in force to the topics' logs."""
        configs: dict[str, LogConfig] = {}
        for partition in self.partitions():
            topic = partition.topic_partition.topic
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
        """Serve the partitions in a log directory that has failed no more; those that were."""
        gone = [each for each in self.partitions() if each.log.directory.parent == directory]
        for partition in gone:
            del self._partitions[partition.topic_partition]
            self._offline[partition.topic_partition] = reason = f"log directory {directory} has failed: {why}"
            partition.gone(OfflineError(*partition.topic_partition, reason))
        return [partition.topic_partition for partition in gone]

    def refuse_records(self, directory: Path, why: str | None) -> None:
        """Let the partitions in a log directory take no records from clients, which are told `why`; None for the end.

        A partition that comes to be there afterwards needs another call.
        """
        for partition in self.partitions():
            if partition.log.directory.parent == directory:
                partition.refusal = why

    def tell_damage(self, error: KafkaError) -> None:
        """Log that a file is damaged (corrupt_message), once, and not for every client that meets it."""
        if error.code is ErrorCode.corrupt_message and str(error) not in self._told:
            self._told.add(str(error))
            log.error("%s", error)

    # Upkeep, called at intervals

    def apply_retention(self) -> None:
        """Drop segments past their retention; a log that fails does not keep the others from theirs."""
        for partition in self.partitions():
            try:
                partition.log.apply_retention(now_ms(), partition.high_watermark)
            except KafkaError as error:
                log.error("Retention of %s failed: %s", partition.topic_partition, error)

    def expire_producers(self, expiration_ms: int) -> None:
        """Forget producers that wrote nothing for `producer.id.expiration.ms`."""
        for partition in self.partitions():
            partition.producers.expire(now_ms(), expiration_ms, partition.transactions)

    def flush_due(self) -> None:
        """Flush the logs whose `flush.ms` is over; waits for the disk: call it in a thread.

        Those that fail tell why in `failed`.
        """
        if self.shortest_flush_ms == _NEVER_MS:
            return
        now = now_ms()
        shortest = _NEVER_MS
        for partition in self.partitions():
            shortest = min(shortest, partition.log.config.flush_ms)
            if partition.log.flusher.flush_due(now):
                try:
                    partition.log.flusher.flush(now)
                except KafkaError as error:
                    log.error("Flushing failed: %s", error)
        self.shortest_flush_ms = max(shortest, _SHORTEST_FLUSH_MS)

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets and high watermarks down; waits for the disk: call it in a thread.

        Raises KafkaError(kafka_storage_error).
        """
        with self._checkpointing:
            self.log_dirs.checkpoint(self._high_watermarks())

    def close(self) -> None:
        """Close every log and mark the shutdown as clean."""
        for partition in self.partitions():
            # without producers too: a start that finds no snapshot reads the headers of the whole log
            if partition.log_end_offset:
                partition.write_producer_snapshot(partition.log_end_offset)
        self.log_dirs.close(self._high_watermarks())
        self._partitions.clear()

    def space(self) -> list[tuple[str, int, int]]:
        """`(log directory, total bytes, usable bytes)` of each."""
        return [(str(directory), *self.log_dirs.owned.space(directory)) for directory in self.log_dirs.directories]

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {partition.topic_partition: partition.high_watermark for partition in self.partitions()}


def _producer_state_of(opened: Log) -> tuple[ProducerState, OpenTransactions]:
    """The state as of the newest snapshot that can be read, brought up to date from the log behind it."""
    state = ProducerState()
    transactions = OpenTransactions()
    # not the log start offset: what is hidden but still there tells what producers wrote last
    start = opened.segments.first_offset
    for offset, path in sorted(snapshots(opened.directory).items(), reverse=True):
        try:
            entries = read_snapshot(path)
        except (CorruptSnapshotError, OSError) as error:
            log.warning("%s; reading producers from an older snapshot or the log", error)
            continue
        state.restore(entries)
        if entries:
            try:
                state.recall(opened.segments.headers_before(offset, _RECALLED_INDEX_ENTRIES))
            except KafkaError as error:
                log.warning("Repeated batches of %s may be refused: %s", opened.topic_partition, error)
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
            if record is not None and marker_of(record.key) is not None:
                state.end_transaction(header, coordinator_epoch_of(record.value))
                transactions.end(header, record.key)
    return state, transactions
