"""The invariants of replication, checked after every step of the loop that has changed something."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from headrace.replication.following.partition import FollowedPartition
from headrace.replication.partition import Partition
from headrace.storage.log.log import Log
from headrace.types import TopicPartition
from headrace.wire.batch import NO_PRODUCER_ID, BatchHeader, batch_crc_ok
from tests.simulation.cluster.broker import Broker
from tests.simulation.cluster.loop import Process
from tests.simulation.cluster.store import Key, Store, ViolationError

_OF_PRODUCERS: Final = 4
"""The first parts of a partition's state, on which its producers depend: the log, and the leader epoch."""


def key_of(partition: Partition | FollowedPartition) -> Key:
    return Key(*partition.topic_partition, partition.topic_id)


class Held(NamedTuple):
    """A batch in a log."""

    header: BatchHeader
    data: bytes


class Copy:
    """The batches of one log after its last change."""

    def __init__(self) -> None:
        self.log: Log | None = None
        self.batches: list[Held] = []
        self.producers: dict[int, int] = {}
        """The last offset of every producer id."""
        self.equal = 0
        """Number of batches that are known to equal the committed ones."""
        self._data: dict[int, bytes] = {}
        self._truncations = -1
        self._start = 0
        self.log_start_offset = 0

    def read(self, log: Log) -> list[Held]:
        """Return the batches that are new since the last call, or all after a truncation."""
        self.log_start_offset = log.log_start_offset
        end = self.batches[-1].header.next_offset if self.batches else 0
        is_known = log is self.log and log.state.truncations == self._truncations
        if not is_known or log.segments.first_offset != self._start:
            self.log, self._truncations = log, log.state.truncations
            self._start = end = log.segments.first_offset
            self.batches = []
            self.equal = 0
            self.producers = {}
            self._data = {}
        if end >= log.state.log_end_offset:
            return []
        new = [Held(header, data) for header, data in _contents(log, end) if header.base_offset >= end]
        self.batches += new
        for header, _ in new:
            if header.producer_id != NO_PRODUCER_ID:
                self.producers[header.producer_id] = header.last_offset
        self._data.update({held.header.base_offset: held.data for held in new})
        return new

    def has(self, held: Held) -> bool:
        is_deleted = held.header.next_offset <= self.log_start_offset
        return is_deleted or self._data.get(held.header.base_offset) == held.data


def _offset_of(held: Held) -> int:
    return held.header.base_offset


def _contents(log: Log, offset: int) -> Iterator[tuple[BatchHeader, bytes]]:
    for segment, position, header in log.segments.batches(offset):
        yield header, segment.file.pread(header.size, position)


class Committed:
    """Everything of one partition that was ever below the high watermark of a leader."""

    def __init__(self) -> None:
        self.batches: dict[int, Held] = {}
        self.history: list[Held] = []
        """With the batches that were deleted."""
        self.start = 0
        self.end = 0

    def add(self, held: Held) -> None:
        self.batches[held.header.base_offset] = held
        self.history.append(held)
        self.end = held.header.next_offset

    def delete(self, start: int) -> None:
        """Forget the batches before the log start offset of a leader."""
        if start > self.start:
            self.start = start
            for offset in [offset for offset, held in self.batches.items() if held.header.next_offset <= start]:
                del self.batches[offset]


class Checks:
    """The invariants. `copies` survive the processes of brokers, as disks do."""

    def __init__(self, store: Store, min_isr: Callable[[str], int]) -> None:
        self._store = store
        self._min_isr = min_isr
        self._checked_changes = 0
        self._obeyed: dict[Broker, int] = {}
        """The latest controller epoch by process."""
        self._lost_power: set[int] = set()
        self.committed: dict[Key, Committed] = {}
        self.copies: dict[tuple[int, Key], Copy] = {}
        self._copied: dict[int, set[TopicPartition]] = {}
        """The names of the copies by broker."""
        self._leaders: dict[tuple[Key, int], Broker] = {}
        self._seen: dict[Partition | FollowedPartition, tuple[Any, ...]] = {}
        """The state of a partition when it was last checked: that of its log first."""
        self._high_watermarks: dict[tuple[Key, int], int] = {}

    def check(self, brokers: Iterable[Broker], ran: Collection[Process]) -> None:
        """Check the running brokers whose processes have run, and all after a change of the store.

        Raises ViolationError.
        """
        has_changed = self._checked_changes != self._store.changes
        self._checked_changes = self._store.changes
        if not has_changed and not ran:
            return
        for broker in brokers:
            if (has_changed or broker.process in ran) and broker.is_up:
                self._check_controller(broker)
                for partition in broker.replicas.hosted():
                    self._check_if_changed(broker, partition)
                self._forget_deleted(broker)
        if has_changed:
            for name in self._store.states:
                self._check_isr(name)

    def _check_controller(self, broker: Broker) -> None:
        """Check that no deposed controller commands a broker that has obeyed its successor."""
        epoch, last = broker.cache.image.controller_epoch, self._obeyed.get(broker, 0)
        if epoch < last:
            raise ViolationError(f"broker {broker.id} obeys the controller of epoch {epoch} after that of {last}")
        self._obeyed[broker] = epoch

    def lost_power(self, broker_id: int) -> None:
        """Forget the copies of a broker, whose disk may have lost data."""
        self._lost_power.add(broker_id)
        for key in [key for key in self.copies if key[0] == broker_id]:
            del self.copies[key]
        self._copied.pop(broker_id, None)

    def _forget_deleted(self, broker: Broker) -> None:
        """Forget copies whose files were deleted, and check that they were not needed."""
        assert broker.log_dirs is not None
        known = broker.log_dirs.partitions()
        copied = self._copied.get(broker.id)
        if copied is None or copied <= known:
            return
        copied &= known
        for key in [key for key in self.copies if key[0] == broker.id and key[1].name not in known]:
            del self.copies[key]
            self._check_deletion(broker, key[1])

    def _check_deletion(self, broker: Broker, name: Key) -> None:
        state = self._store.states.get(name)
        if state is None or self._store.is_deleting(name.topic):
            return
        assignment = self._store.assignments[name]
        if broker.id in state.isr:
            raise ViolationError(f"{name}: broker {broker.id} deletes its replica, and is in the ISR {state.isr}")
        if broker.id in assignment.removing and not set(assignment.target) <= set(state.isr):
            raise ViolationError(
                f"{name}: broker {broker.id} deletes its replica before {assignment.target} are in the ISR {state.isr}"
            )

    def _check_isr(self, name: Key) -> None:
        """Check that every member of the ISR has all records that consumers have seen, because it may be elected."""
        state = self._store.states[name]
        if name in self._store.tainted or self._store.is_deleting(name.topic):
            return
        safe = set(state.isr) - self._store.at_risk.get(name, set())
        for held in self.committed.setdefault(name, Committed()).batches.values():
            for member in safe:
                copy = self.copies.get((member, name))
                if copy is None or not copy.has(held):
                    raise ViolationError(
                        f"{name}: broker {member} is in the ISR {state.isr} (version {state.version}) without the"
                        f" committed batch at {held.header.base_offset}"
                    )

    def _check_if_changed(self, broker: Broker, partition: Partition | FollowedPartition) -> None:
        state = partition.log.state
        followers = partition.followers if isinstance(partition, Partition) else None
        now = (
            state.log_end_offset,
            state.log_start_offset,
            state.truncations,
            partition.leader_epoch,
            partition.high_watermark,
            None if followers is None else followers.state.maximal_isr,
            self._store.changes,
        )
        before = self._seen.get(partition)
        if before == now:
            return
        self._seen[partition] = now
        name = key_of(partition)
        copy = self.copies.get((broker.id, name))
        if copy is None:
            copy = self.copies[broker.id, name] = Copy()
            self._copied.setdefault(broker.id, set()).add(name.name)
        new = copy.read(partition.log)
        self._check_new(broker, partition, new)
        if before is None or before[:_OF_PRODUCERS] != now[:_OF_PRODUCERS]:
            self._check_producers(broker, partition, copy)
        if name in self._store.tainted or self._store.is_deleting(name.topic):
            return
        if isinstance(partition, Partition):
            self._check_leader(broker, partition, copy)
        self._check_committed(broker, partition, copy)

    def _check_new(self, broker: Broker, partition: Partition | FollowedPartition, new: list[Held]) -> None:
        """Check the form of the log: offsets ascend, checksums are right, and the epoch cache agrees with batches."""
        log = partition.log
        for header, data in new:
            if not batch_crc_ok(data, 0, len(data)):
                raise ViolationError(f"broker {broker.id}, {log.topic_partition}: damaged batch {header.base_offset}")
            epoch = log.leader_epochs.epoch_for(header.base_offset)
            if header.base_offset >= log.log_start_offset and epoch != header.partition_leader_epoch:
                raise ViolationError(
                    f"broker {broker.id}, {log.topic_partition}: the batch at {header.base_offset} has epoch"
                    f" {header.partition_leader_epoch}, the cache says {log.leader_epochs.entries}"
                )
        for one, other in pairwise(new):
            if other.header.base_offset < one.header.next_offset:
                raise ViolationError(f"broker {broker.id}, {log.topic_partition}: offsets do not ascend")
        if not log.log_start_offset <= partition.high_watermark <= log.log_end_offset:
            raise ViolationError(
                f"broker {broker.id}, {log.topic_partition}: high watermark {partition.high_watermark} of a log from"
                f" {log.log_start_offset} to {log.log_end_offset}"
            )

    @staticmethod
    def _check_producers(broker: Broker, partition: Partition | FollowedPartition, copy: Copy) -> None:
        """Check that the replica knows the producers in its log, and remembers no batch that was truncated."""
        first = partition.log.segments.first_offset
        known = {
            producer_id: producer.batches[-1].last_offset
            for producer_id, producer in partition.producers.items()
            if producer.batches and producer.batches[-1].last_offset >= first
        }
        if known != copy.producers:
            raise ViolationError(
                f"broker {broker.id}, {key_of(partition)}: the last offsets of producers are {copy.producers} in the"
                f" log, but {known} in memory"
            )

    def _check_leader(self, broker: Broker, partition: Partition, copy: Copy) -> None:
        name, epoch = key_of(partition), partition.leader_epoch
        state = self._store.states.get(name)
        if state is None:
            return  # the topic was deleted
        known = self._leaders.setdefault((name, epoch), broker)
        if known is not broker:
            raise ViolationError(f"brokers {known.id} and {broker.id} (or two lives) lead {name} under epoch {epoch}")
        last = self._high_watermarks.get((name, epoch))
        if last is None:
            if epoch == state.leader_epoch:  # otherwise the next leader may already have committed more
                self._check_elected(broker, partition, copy)
        elif partition.high_watermark < last:
            raise ViolationError(f"{name}: the high watermark goes back from {last} to {partition.high_watermark}")
        self._high_watermarks[name, epoch] = partition.high_watermark
        if epoch == state.leader_epoch:
            self.committed.setdefault(name, Committed()).delete(partition.log_start_offset)
        noted = [entry.epoch for entry in partition.log.leader_epochs.entries[-1:]]
        if partition.followers is not None and noted != [epoch]:
            raise ViolationError(f"{name}: the leader {broker.id} has not noted its epoch {epoch}")
        if partition.followers is not None and state.leader_epoch == epoch:
            maximal = partition.followers.state.maximal_isr
            if not maximal >= set(state.isr):
                raise ViolationError(f"{name}: the leader {broker.id} waits for {set(maximal)}, the ISR is {state.isr}")
        self._commit(broker, partition, copy)

    def _check_elected(self, broker: Broker, partition: Partition, copy: Copy) -> None:
        """Check that a new leader has all records that consumers have seen."""
        name = key_of(partition)
        committed = self.committed.setdefault(name, Committed())
        for held in committed.batches.values():
            if not copy.has(held):
                raise ViolationError(
                    f"{name}: the new leader {broker.id} (epoch {partition.leader_epoch}) lacks the committed batch at"
                    f" {held.header.base_offset}"
                )

    def _commit(self, broker: Broker, partition: Partition, copy: Copy) -> None:
        """Note the batches that the high watermark has passed, and check that the ISR has them."""
        name = key_of(partition)
        committed = self.committed.setdefault(name, Committed())
        state = self._store.states[name]
        replicas = self._store.assignments[name].replicas
        for held in copy.batches[bisect_left(copy.batches, committed.end, key=_offset_of) :]:
            header = held.header
            if header.next_offset > partition.high_watermark:
                break
            holders = {number for (number, other), each in self.copies.items() if other == name and each.has(held)}
            holders |= self._lost_power  # perhaps a broker had it
            if len(holders) < min(self._min_isr(name.topic), len(replicas)):
                raise ViolationError(
                    f"{name}: leader {broker.id} commits the batch at {header.base_offset}, which only {holders} have"
                )
            missing = set(state.isr) - holders
            if missing:
                raise ViolationError(
                    f"{name}: leader {broker.id} commits the batch at {header.base_offset}, which {missing} in the ISR"
                    " lack"
                )
            committed.add(held)

    def _check_committed(self, broker: Broker, partition: Partition | FollowedPartition, copy: Copy) -> None:
        """Check that all batches below a high watermark equal the committed ones."""
        name = key_of(partition)
        committed = self.committed.setdefault(name, Committed())
        if partition.high_watermark > committed.end:
            raise ViolationError(
                f"{name}: broker {broker.id} has the high watermark {partition.high_watermark}, but only offsets before"
                f" {committed.end} were committed"
            )
        for held in copy.batches[copy.equal :]:
            header = held.header
            if header.base_offset >= partition.high_watermark:
                break
            copy.equal += 1
            if header.next_offset <= partition.log_start_offset:
                continue
            known = committed.batches.get(header.base_offset)
            if header.next_offset > committed.start and (known is None or known.data != held.data):
                raise ViolationError(
                    f"{name}: broker {broker.id} has another batch at {header.base_offset}, below its high watermark"
                    f" {partition.high_watermark}"
                )

    # Clients

    def committed_start(self, name: Key) -> int:
        return self.committed.setdefault(name, Committed()).start

    def committed_end(self, name: Key) -> int:
        return self.committed.setdefault(name, Committed()).end

    def acknowledged(self, name: Key, offset: int, count: int) -> None:
        """Check that acknowledged records are committed."""
        committed = self.committed.setdefault(name, Committed())
        if offset + count > committed.end:
            raise ViolationError(f"{name}: offset {offset} is acknowledged, but {committed.end} is the committed end")

    def read(self, name: Key, offset: int, data: bytes) -> None:
        """Check a batch that a consumer has read."""
        committed = self.committed.setdefault(name, Committed())
        held = committed.batches.get(offset)
        if offset >= committed.start and (held is None or held.data != data):
            raise ViolationError(f"{name}: a consumer has read a batch at {offset} that was not committed there")
