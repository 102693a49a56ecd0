"""A broker's storage on a recorded disk: random changes and starts."""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from headrace.replication.following.partition import FollowedPartition
from headrace.replication.leading.isr_changes import Answer, IsrChange
from headrace.replication.leading.peers import Peers
from headrace.replication.partition import Partition
from headrace.replication.producer_state import ProducerState
from headrace.replication.replica import Replica
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.cleaner.log_cleaner import CleanerSettings, Compactable, LogCleaner
from headrace.storage.dirs import log_switch
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.log_move import LogMove
from headrace.storage.dirs.strays import set_strays_aside
from headrace.storage.log.config import LogConfig
from headrace.types import PartitionState, TopicPartition
from headrace.wire.records import RecordData, batch_headers, build_batch
from tests.crashes.disk import Disk
from tests.crashes.story import (
    Action,
    Appended,
    Batch,
    Emptied,
    Fetched,
    Flushed,
    HighWatermarkKept,
    StartKept,
    StartMoved,
    Step,
    Story,
    Truncated,
    batch,
)
from tests.unit.storage.cleaner.compaction import InlineProcess

NOW = 1_700_000_000_000
PLAIN = TopicPartition("plain", 0)
TABLE = TopicPartition("table", 0)
BRIEF = TopicPartition("brief", 0)
"""Its topic is deleted and created again."""

_PLACED = struct.Struct(">qii")
_PLAIN_CONFIG = LogConfig(segment_bytes=2400, index_interval_bytes=300, segment_index_bytes=4096)
_TABLE_CONFIG = replace(
    _PLAIN_CONFIG,
    segment_bytes=1800,
    cleanup_policy=frozenset({"compact"}),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1 << 40,
)
_CLEANER = CleanerSettings(map_bytes=10e6, io_buffer_bytes=512, bytes_per_second=1e12)


def unlock(dirs: LogDirs) -> None:
    """Release the locks without a clean close, as the death of a process does."""
    dirs.logs.clear()
    for directory in dirs.owned.working:
        directory.unlock()


def check_follower(replicas: ReplicaManager, topic_partition: TopicPartition) -> None:
    """Check that a follower starts with the saved high watermark, limited to its log."""
    followed = replicas.readable(*topic_partition)
    saved = replicas.log_dirs.high_watermark(topic_partition)
    expected = max(followed.log_start_offset, min(saved, followed.log_end_offset))
    assert followed.high_watermark == expected, f"high watermark {followed.high_watermark}, saved {saved}"


class _Unanswered:
    """A controller that is away."""

    def submit(self, change: IsrChange, done: Callable[[Answer], None]) -> None:
        """Ignore a change of the ISR."""


_OWN, _OTHER = 0, 1
_PEERS = Peers(_OWN, is_alive=lambda _: True, max_lag_ms=lambda: 1000, now_ms=lambda: NOW, alter_isr=_Unanswered())


class World:
    """Two log directories, a few partitions, and their stories."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.stories = {
            PLAIN: Story(UUID(int=1), compacted=False),
            TABLE: Story(UUID(int=2), compacted=True),
        }
        self.leader_epoch = 0
        self._serial = 0
        self._versions = 0
        self._topics = 2
        self._chapters: list[tuple[int, dict[TopicPartition, Story]]] = []
        self._configs = {
            PLAIN: replace(
                _PLAIN_CONFIG,
                flush_messages=random.choice((1 << 60, 1 << 60, 1, 5)),
                preallocate=random.random() < 0.1,
                segment_bytes=random.choice((1200, 2400, 8000)),
            ),
            TABLE: _TABLE_CONFIG,
        }

    # -- lives ---------------------------------------------------------------------------------------------------------

    def start(self, root: Path, stories: Mapping[TopicPartition, Story]) -> ReplicaManager:
        """Start the storage as a broker does, with the partitions in the metadata."""
        dirs = LogDirs.open([root / "a", root / "b"], broker_id=0, cluster_id="c")
        try:
            replicas = ReplicaManager(dirs, lambda topic: self._configs.get(TopicPartition(topic, 0), _PLAIN_CONFIG))
            set_strays_aside(dirs, lambda each: stories[each].topic_id if each in stories else None)
            replicas.peers = _PEERS
            for topic_partition, story in stories.items():
                replicas.open(topic_partition, story.topic_id, is_new=True)
                if self.random.random() < 0.5:
                    replicas.follow(self._state(topic_partition, story, leader=_OTHER))
                    check_follower(replicas, topic_partition)
                replicas.lead(self._state(topic_partition, story, leader=_OWN))
            dirs.sync_names()
        except BaseException:
            unlock(dirs)
            raise
        return replicas

    def live(self, root: Path, disk: Disk, steps: int) -> None:
        """Start, take `steps` random actions, and sometimes close cleanly."""
        self.leader_epoch += 1
        self._disk = disk
        self._chapters = [(0, dict(self.stories))]
        self.replicas = self.start(root, self.stories)
        self.started_at = len(disk.journal)
        try:
            for _ in range(steps):
                self._weighted()()
            if self.random.random() < 0.3:
                self._close()
                return
        except BaseException:
            unlock(self.replicas.log_dirs)
            raise
        unlock(self.replicas.log_dirs)

    def _state(
        self, topic_partition: TopicPartition, story: Story, *, leader: int, replicas: tuple[int, ...] = (_OWN,)
    ) -> PartitionState:
        epoch = self.leader_epoch
        # Every state that this broker gets is newer than the one before.
        self._versions += 1
        return PartitionState(
            topic_partition.topic,
            story.topic_id,
            topic_partition.partition,
            leader,
            epoch,
            replicas,
            replicas,
            is_new=True,
            partition_epoch=self._versions,
        )

    def stories_at(self, point: int) -> dict[TopicPartition, Story]:
        """Return the partitions in the metadata after `point` entries of the journal."""
        return [stories for begin, stories in self._chapters if begin <= point][-1]

    def _weighted(self) -> Callable[[], None]:
        actions: list[tuple[int, Callable[[], None]]] = [
            (60, self._append),
            (8, self._flush),
            (3, self._write_back),
            (3, self._roll),
            (3, self._retention),
            (3, self._delete_records),
            (15, self._fetch),
            (3, self._truncate),
            (3, self._diverge),
            (1, self._empty),
            (4, self._follow),
            (12, self._lead_again),
            (5, self._commit),
            (5, self._compact),
            (3, self._remove_deleted),
            (2, self._new_epoch),
            (3, self._brief_topic),
            (4, self._move),
        ]
        return self.random.choices([each for _, each in actions], [weight for weight, _ in actions])[0]

    @contextmanager
    def _step(self, topic_partition: TopicPartition, *actions: Action) -> Iterator[list[Action]]:
        """Record `actions`, and those that the body adds to the list, as steps of the partition."""
        steps = list(actions)
        begin = len(self._disk.journal)
        yield steps
        end = len(self._disk.journal)
        self.stories[topic_partition].steps += [Step(begin, end, action) for action in steps]

    def _any(self) -> tuple[TopicPartition, Partition]:
        """Return a partition that this broker leads."""
        led = [item for item in self.stories if self.replicas.find(*item) is not None]
        topic_partition = self.random.choice(led)
        return topic_partition, self.replicas.get(*topic_partition)

    def _replica(self, topic_partition: TopicPartition) -> Replica:
        return self.replicas.readable(*topic_partition)

    def _any_follower(self) -> tuple[TopicPartition, FollowedPartition]:
        """Follow a partition that may be truncated; compacted records are below the high watermark and stay."""
        topic_partition = self.random.choice([story for story in self.stories if story != TABLE])
        self.leader_epoch += self.random.random() < 0.3
        state = self._state(topic_partition, self.stories[topic_partition], leader=_OTHER, replicas=(_OWN, _OTHER))
        return topic_partition, self.replicas.follow(state)

    # -- actions -------------------------------------------------------------------------------------------------------

    def _append(self) -> None:
        topic_partition, partition = self._any()
        random = self.random
        records = []
        for _ in range(random.choice((1, 1, 2, 3))):
            self._serial += 1
            key = b"key %d" % random.randrange(5)
            value = b"%08d" % self._serial + b"v" * random.choice((20, 20, 180, 500))
            tombstone = topic_partition == TABLE and random.random() < 0.1
            records.append(RecordData(key, None if tombstone else value, NOW + self._serial + random.randrange(-9, 9)))
        producer = random.choice((-1, -1, 10, 11))
        numbers: dict[str, Any] = {}
        if producer >= 0:
            known = dict(partition.producers.items()).get(producer)
            epoch, sequence = (known.epoch, known.last_sequence + 1) if known is not None else (0, 0)
            if random.random() < 0.1:
                epoch, sequence = epoch + 1, 0
            numbers = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
        data = build_batch(records, **numbers)
        offset = partition.log_end_offset
        placed = batch(_PLACED.pack(offset, len(data) - 12, partition.leader_epoch) + data[16:])
        with self._step(topic_partition, Appended(placed)) as steps:
            partition.append_as_leader(data, now_ms=NOW)
            if partition.log.flusher.recovery_point == partition.log_end_offset:
                steps.append(Flushed(partition.log_end_offset))

    def _flush(self) -> None:
        topic_partition, partition = self._any()
        with self._step(topic_partition, Flushed(partition.log_end_offset)):
            partition.log.flusher.flush(NOW)

    def _write_back(self) -> None:
        """Flush and checkpoint, as a broker does every minute."""
        begin = len(self._disk.journal)
        replicas = {item: self._replica(item) for item in self.stories}
        starts = {item: replica.log_start_offset for item, replica in replicas.items()}
        ends = {item: replica.log.segments.active_base_offset for item, replica in replicas.items()}
        high_watermarks = {item: replica.high_watermark for item, replica in replicas.items()}
        self.replicas.log_dirs.flush_rolled()
        self.replicas.checkpoint()
        end = len(self._disk.journal)
        for each, story in self.stories.items():
            story.steps += [
                Step(begin, end, Flushed(ends[each])),
                Step(begin, end, StartKept(starts[each])),
                Step(begin, end, HighWatermarkKept(high_watermarks[each])),
            ]

    def _roll(self) -> None:
        self._any()[1].log.roll(NOW)

    def _retention(self) -> None:
        partition = self._replica(PLAIN)
        config = partition.log.config
        partition.log.configure(replace(config, retention_bytes=self.random.choice((0, 1000, 4000)), retention_ms=-1))
        with self._step(PLAIN) as steps:
            partition.log.apply_retention(NOW, partition.high_watermark)
            steps.append(StartMoved(partition.log_start_offset))
        partition.log.configure(config)

    def _delete_records(self) -> None:
        """Delete records, or learn from the leader that they are deleted."""
        replica = self._replica(PLAIN)
        offset = self.random.randint(replica.log_start_offset, replica.high_watermark)
        if isinstance(replica, FollowedPartition):
            with self._step(PLAIN, StartMoved(offset)):
                replica.learn(replica.high_watermark, offset)
            return
        partition = self.replicas.get(*PLAIN)
        with self._step(PLAIN, StartMoved(offset), StartKept(offset)) as steps:
            partition.delete_records(offset)
            self.replicas.checkpoint()
            steps.append(HighWatermarkKept(partition.high_watermark))
        for item, story in self.stories.items():
            if item != PLAIN:
                last = self.stories[PLAIN].steps[-1]
                story.steps.append(Step(last.begin, last.end, HighWatermarkKept(self._replica(item).high_watermark)))

    def _truncate(self) -> None:
        topic_partition, followed = self._any_follower()
        offset = self._recent_batch(followed)
        if offset is not None:
            with self._step(topic_partition, Truncated(offset)):
                followed.truncate_to(offset)
            self.leader_epoch += 1

    def _diverge(self) -> None:
        """Truncate to where the leader's log diverges."""
        topic_partition, followed = self._any_follower()
        offset = self._recent_batch(followed)
        if offset is None:
            return
        epochs = followed.log.leader_epochs
        epoch = epochs.epoch_for(offset - 1 if offset > followed.log.segments.first_offset else offset)
        with self._step(topic_partition, Truncated(offset)):
            assert followed.truncate_where_diverging(epoch, offset) == offset, f"{epochs.entries}: {epoch}, {offset}"
        # A leader never writes different records under an earlier leader's epoch.
        self.leader_epoch += 1

    def _recent_batch(self, followed: FollowedPartition) -> int | None:
        """Return the offset of one of the last batches; None without any."""
        log = followed.log
        bases = [header.base_offset for header in log.segments.headers(log.log_start_offset)]
        offsets = [base for base in bases if base >= log.log_start_offset]
        return self.random.choice(offsets[-6:]) if offsets else None

    def _empty(self) -> None:
        topic_partition, followed = self._any_follower()
        offset = followed.log_end_offset + self.random.choice((0, 7))
        with self._step(topic_partition, Emptied(offset)):
            followed.truncate_fully_and_start_at(offset)

    def _follow(self) -> None:
        self._any_follower()

    def _lead_again(self) -> None:
        """Lead a followed partition, with or without a follower, using the state in memory."""
        followed = self.replicas.followed()
        if followed:
            topic_partition = self.random.choice(followed).topic_partition
            self.leader_epoch += 1
            replicas = self.random.choice(((_OWN,), (_OWN, _OTHER)))
            self.replicas.lead(
                self._state(topic_partition, self.stories[topic_partition], leader=_OWN, replicas=replicas)
            )

    def _commit(self) -> None:
        """Let the follower of a led partition fetch."""
        _, partition = self._any()
        if partition.followers is not None:
            offset = self.random.randint(partition.high_watermark, partition.log_end_offset)
            partition.fetched_by(_OTHER, offset, 0, -1)

    def _fetch(self) -> None:
        """Follow other leaders for a while: append what they sent, in one or two epochs, and the last batch in part."""
        topic_partition, followed = self._any_follower()
        random = self.random
        offset = followed.log_end_offset
        # The new leader may have more records of the last common epoch.
        epochs = followed.log.leader_epochs
        epoch = epochs.epoch_for(offset - 1) if random.random() < 0.5 else self.leader_epoch
        if epoch < 0:  # unknown, because the log starts at its end; earlier batches may have a later epoch than 0
            epoch = self.leader_epoch
        if epoch < epochs.latest:
            # This broker has led without appending: the leader does not know that epoch, and its own epoch ends later.
            assert followed.truncate_where_diverging(epoch, offset + 1) == offset
        sent = b""
        for _ in range(random.randint(1, 8)):
            if random.random() < 0.2:
                self.leader_epoch += 1
                epoch = self.leader_epoch
            self._serial += 1
            values = [
                b"%08d" % self._serial + b"v" * random.choice((20, 180, 500)) for _ in range(random.choice((1, 3)))
            ]
            records = [RecordData(b"key", value, NOW + self._serial) for value in values]
            numbers = self._next_numbers(followed, sent)
            data = build_batch(records, base_offset=offset, leader_epoch=epoch, **numbers)
            sent += data
            offset += len(records)
        whole = tuple(Batch(header, sent[at : at + header.size]) for at, header in batch_headers(sent))
        sent += sent[: random.randrange(60)]
        followed.leader_epoch = self.leader_epoch
        with self._step(topic_partition, Fetched(whole)):
            followed.append_fetched(memoryview(sent), NOW)
        followed.learn(random.randint(followed.high_watermark, offset), 0)

    def _next_numbers(self, followed: FollowedPartition, sent: bytes) -> dict[str, Any]:
        """Return the producer id, epoch and sequence of the next batch; none for a plain producer."""
        producer = self.random.choice((-1, 12))
        if producer < 0:
            return {}
        state = ProducerState()
        state.restore(followed.producers.snapshot())
        for _, header in batch_headers(sent):
            state.replay(header)
        known = dict(state.items()).get(producer)
        epoch, sequence = (0, 0) if known is None else (known.epoch, known.last_sequence + 1)
        return {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}

    def _compact(self) -> None:
        partition = self.replicas.get(*TABLE)
        partition.log.roll(NOW)
        compactable = Compactable(partition.log, partition.log_end_offset, partition.producers.snapshot)
        cleaner = LogCleaner(
            self.replicas.log_dirs,
            lambda: [compactable],
            lambda: _CLEANER,
            on_loop=lambda work: work(),
            now_ms=lambda: NOW,
        )
        cleaner.clean_filthiest(InlineProcess())
        assert not cleaner.failing

    def _move(self) -> None:
        """Move a partition to the other log directory, with appends between the steps, or give up the move."""
        topic_partition, partition = self._any()
        log_dirs = self.replicas.log_dirs
        target = next(directory for directory in log_dirs.directories if directory != partition.log.directory.parent)
        move = LogMove(partition.log, self.stories[topic_partition].topic_id, target)
        move.prepare()
        for _ in range(self.random.randint(1, 3)):
            move.copy(move.plan(), lambda: inf)
            self._append()
        if self.random.random() < 0.2:
            move.discard()
            return
        begin = len(self._disk.journal)
        high_watermark = partition.high_watermark
        log_switch.prepare(log_dirs, move, high_watermark)
        assert log_switch.switch(log_dirs, move)
        for step in (
            partition.log.flusher.sync_switch,
            lambda: log_switch.finish(log_dirs, move, NOW),
            log_dirs.sync_names,
        ):
            if self.random.random() < 0.3:
                self._append()
            if self.random.random() < 0.2:
                self._flush()
            step()
        self.stories[topic_partition].steps.append(
            Step(begin, len(self._disk.journal), HighWatermarkKept(high_watermark))
        )

    def _remove_deleted(self) -> None:
        self.replicas.log_dirs.remove_deleted_files(NOW + (1 << 40))

    def _new_epoch(self) -> None:
        topic_partition, _ = self._any()
        self.leader_epoch += 1
        self.replicas.lead(self._state(topic_partition, self.stories[topic_partition], leader=_OWN))

    def _brief_topic(self) -> None:
        """Delete or create the topic, first in the metadata, then in the log directories."""
        known = BRIEF in self.stories
        if known:
            del self.stories[BRIEF]
        else:
            self._topics += 1
            self.stories[BRIEF] = Story(UUID(int=self._topics), compacted=False)
        self._chapters.append((len(self._disk.journal), dict(self.stories)))
        if known:
            self.replicas.delete_files(self.replicas.withdraw([BRIEF]))
        else:
            self.replicas.open(BRIEF, self.stories[BRIEF].topic_id, is_new=True)
            self.replicas.lead(self._state(BRIEF, self.stories[BRIEF], leader=_OWN))
        self.replicas.log_dirs.sync_names()

    def _close(self) -> None:
        begin = len(self._disk.journal)
        replicas = {item: self._replica(item) for item in self.stories}
        ends = {item: (replica.log_end_offset, replica.high_watermark) for item, replica in replicas.items()}
        self.replicas.close()
        for each, story in self.stories.items():
            end_offset, high_watermark = ends[each]
            end = len(self._disk.journal)
            story.steps += [
                Step(begin, end, Flushed(end_offset)),
                Step(begin, end, HighWatermarkKept(high_watermark)),
            ]
