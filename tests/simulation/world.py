"""A simulated cluster: the real coordinator over a crashing log, and clients.

`run` plays a history and raises ViolationError if a promise is broken:

- A partition has one owner: of two readers one is fenced, and two members that follow the protocol in time never
  share a partition.
- A committed offset never decreases, except after an administrator's reset or a loss of the log's tail.
- At every reload, the log agrees with the coordinator's memory.
- After the faults, the group settles within SETTLE_S: every live member has its assignment or a final error, and every
  partition of a subscribed topic has an owner.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer.state import ConsumerGroupState
from headrace.coordinator.groups.expressions import matching
from headrace.coordinator.groups.records.consumer import Partitions, TopicIdPartition
from headrace.coordinator.groups.records.embedded import decode_subscription
from headrace.coordinator.groups.records.offsets import CommittedOffset, OffsetKey
from headrace.coordinator.groups.requests import Leaver
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state.offsets import GroupOffsets
from headrace.errors import ErrorCode, KafkaError
from tests.simulation import acts
from tests.simulation.acts import Act
from tests.simulation.classic_client import ClassicClient
from tests.simulation.clients import REBALANCE_S, SESSION_S, Client, TopicPartition
from tests.simulation.clock import VirtualLoop, virtual_clock
from tests.simulation.consumer_client import ConsumerClient
from tests.simulation.crashing_log import CrashingLog
from tests.simulation.history import FAULTS_S, History

SETTLE_S: Final = 2 * REBALANCE_S + 2 * SESSION_S
"""Time to notice a dead member and to complete two rebalances."""


COUNTS: Final = {"t": 4, "u": 3}
"""Initial partitions by topic."""
NEVER_S: Final = 1e6
"""The delay of a client that hangs."""


class ViolationError(AssertionError):
    """A broken promise, named to find a shorter history that breaks the same one."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise


class Topics:
    """The topics of the cluster, with ids derived from their names."""

    def __init__(self) -> None:
        self.counts = dict(COUNTS)
        self.version = 0

    def grow(self, topic: str) -> None:
        self.counts[topic] += 1
        self.version += 1

    def matching(self, regex: str) -> tuple[str, ...] | None:
        return matching(regex, self.counts)

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        return (topic.encode().ljust(16, b"\0"), self.counts[topic]) if topic in self.counts else None

    def name_of(self, topic_id: bytes) -> str | None:
        name = topic_id.rstrip(b"\0").decode()
        return name if name in self.counts else None


class GroupView(NamedTuple):
    """The coordinator's state of the group."""

    machine: Any
    is_classic: bool


class World:
    """A simulated cluster. Events are appended to `trace` as text."""

    def __init__(self, history: History, *, trace: list[str] | None = None) -> None:
        self.history = history
        self.loop = VirtualLoop()
        self.log = CrashingLog()
        self.topics = Topics()
        self._subscriptions: dict[str, tuple[str, ...]] = {}
        self.clients: dict[str, Client] = {}
        self.is_faulty = True
        self.is_up = False
        self.losses: list[int] = []
        """The ends of the log after losses of its tail."""
        self._assigned_counts = dict(self.topics.counts)
        """Partitions by topic at a leader's last assignment."""
        self._unassigned: set[TopicPartition] = set()
        """Partitions without an owner until the next rebalance."""
        self.lost_partitions: set[TopicPartition] = set()
        """Partitions owned by members that the log has lost."""
        self._trace = trace
        self._ids = 0
        self._checked_end = -1
        settings = history.settings
        self.settings = GroupSettings(
            offsets_topic_num_partitions=1,
            group_min_session_timeout_ms=1000,
            group_initial_rebalance_delay_ms=settings.initial_delay_ms,
            group_max_size=settings.max_size,
            group_consumer_max_size=settings.max_size,
            group_consumer_session_timeout_ms=int(SESSION_S * 1000),
            group_consumer_assignment_interval_ms=settings.assignment_interval_ms,
            group_consumer_migration_policy=settings.migration_policy,
        )
        self.coordinator: GroupCoordinator

    # Running

    def run(self) -> None:
        self._start()
        for act in self.history.acts:
            self.loop.call_at(1000 + act.at, self._act, act)
        self.loop.run_until(1000 + FAULTS_S)
        self._stop_faults()
        self.loop.run_until(self.loop.now + SETTLE_S)
        self._check_settled()
        self._restart_and_compare()
        self.coordinator.close()

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace.append(f"{self.loop.now - 1000:7.3f} s  {text}")

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def revocation_delay(self, client: Client, *, may_hang: bool = False) -> float:
        """Draw the seconds that a client takes to revoke partitions."""
        if self.is_faulty and client.random.random() < 0.1:
            hangs = client.random.random() < 0.5
            return NEVER_S if hangs and may_hang else client.random.uniform(1.0, REBALANCE_S + 3)
        return client.random.uniform(0.0, 0.1)

    def restore_subscription(self, client: Client) -> None:
        """Restore the subscription of a returning static member, since a stable classic group keeps the known one, as
        in Kafka. The log may have lost a newer one.
        """
        found = self.group()
        if found is None or not found.is_classic or found.machine.state is not GroupState.STABLE:
            return
        membership = found.machine.membership
        former = membership.members.get(membership.static.get(client.instance_id))
        if former is not None and client.instance_id is not None:
            client.topics = decode_subscription(former.protocols[0][1]).topics
            self._subscriptions[client.instance_id] = client.topics

    def subscription_of(self, client: Client) -> tuple[str, ...]:
        """Return the topics that the client's application wants."""
        return self._subscriptions.get(client.instance_id or client.name, client.topics)

    def _stop_faults(self) -> None:
        self.note("no more faults")
        self.is_faulty = False
        self.log.refusal = None
        if not self.is_up:
            self._start()

    def record_assignment(self, counts: Mapping[str, int]) -> None:
        """Record the partition counts of a leader's assignment."""
        self._assigned_counts = dict(counts)
        self._unassigned.clear()

    def skip_growth(self, counts: Mapping[str, int]) -> None:
        """Record that a returning static leader keeps the assignment: as in Kafka and its Java client (KIP-814), new
        partitions wait for a rebalance.
        """
        for topic, count in counts.items():
            self._unassigned.update((topic, index) for index in range(self._assigned_counts[topic], count))

    # Requests

    def commit(self, client: Client, member_id: str, epoch: int, offsets: dict[TopicPartition, int]) -> ErrorCode:
        before = dict(self.log.committed)
        to_commit = [
            (topic, index, CommittedOffset(offset, -1, "", 0, topic_id=self._id_of(topic)))
            for (topic, index), offset in offsets.items()
        ]
        errors = self.coordinator.commit_offsets("g", member_id, client.instance_id, epoch, to_commit)
        for (topic, index), error in zip(offsets, errors, strict=True):
            if error is not ErrorCode.none:
                continue
            was, now = before.get(OffsetKey("g", topic, index), 0), offsets[topic, index]
            if now < was and not client.is_tainted and (topic, index) not in self.lost_partitions:
                raise ViolationError(
                    "committed offset decreased", f"{topic}-{index} from {was} to {now} by {client.name}"
                )
        return next((error for error in errors if error is not ErrorCode.none), ErrorCode.none)

    def committed_offsets(self) -> GroupOffsets:
        return self.coordinator.committed_offsets("g")

    def with_ids(self, partitions: Iterable[TopicPartition]) -> Partitions:
        return frozenset(TopicIdPartition(self._id_of(topic), index) for topic, index in partitions)

    def with_names(self, partitions: Partitions) -> set[TopicPartition]:
        return {(one.topic_id.rstrip(b"\0").decode(), one.partition) for one in partitions}

    @staticmethod
    def _id_of(topic: str) -> bytes:
        return topic.encode().ljust(16, b"\0")

    def group(self) -> GroupView | None:
        if not self.is_up:
            return None
        try:
            machine = self.coordinator.group("g")
        except KafkaError:
            return None
        return GroupView(machine, isinstance(machine, ClassicGroup))

    # Faults and acts

    def _act(self, act: Act) -> None:
        self.note(str(act))
        getattr(self, f"_do_{act.kind}")(*act.arguments)

    def _do_start(self, name: str, kind: str, topics: tuple[str, ...], instance_id: str | None) -> None:
        arguments = (self, name, topics, instance_id, f"{self.history.seed} {name}")
        for other in self.clients.values():
            if instance_id is not None and other.instance_id == instance_id:
                arguments = (self, name, other.topics, instance_id, arguments[-1])
        is_modern = kind == "consumer"
        client = ConsumerClient(*arguments) if is_modern else ClassicClient(*arguments, kind=kind)
        self.clients[name] = client
        self.displace_others(client)

    def displace_others(self, client: Client) -> None:
        """Mark other clients with the instance id of `client`, which may have replaced them."""
        for other in self.clients.values():
            if other is not client and client.instance_id is not None and other.instance_id == client.instance_id:
                other.is_displaced = True

    def _alive(self, name: str) -> Client | None:
        client = self.clients.get(name)
        return client if client is not None and client.is_alive else None

    def _do_crash(self, name: str) -> None:
        if client := self._alive(name):
            client.crash()

    def _do_leave(self, name: str) -> None:
        if client := self._alive(name):
            client.leave()

    def _do_pause(self, name: str, seconds: float) -> None:
        if client := self._alive(name):
            client.pause(seconds)

    def _do_stall(self, name: str, seconds: float) -> None:
        if client := self._alive(name):
            client.stall(seconds)

    def _do_subscribe(self, name: str, topics: tuple[str, ...]) -> None:
        if client := self.clients.get(name):
            self._subscriptions[client.instance_id or name] = topics

    def _do_grow(self, topic: str) -> None:
        self.topics.grow(topic)

    def _do_refuse(self, error: ErrorCode, seconds: float) -> None:
        self.log.refusal = error
        self.loop.call_later(seconds, self._accept)

    def _accept(self) -> None:
        self.log.refusal = None

    def _do_restart(self, down_s: float, lost_batches: int, is_clean: bool, is_compacted: bool) -> None:
        """Stop the broker, cleanly or not, perhaps losing unflushed batches, and start it again later."""
        if not self.is_up:
            return
        self._stop(is_clean=is_clean)
        if lost_batches:
            before = self.log.end
            self.log.lose_tail(lost_batches)
            self.note(f"the log ends at {self.log.end} instead of {before}")
            self.losses.append(self.log.end)
            self._assigned_counts = dict(COUNTS)
            for client in self.clients.values():
                if client.is_tainted:
                    self.lost_partitions.update(client.owned)
                    client.lost_partitions.update(client.owned)
        if is_compacted:
            self.log.compact()
        self.loop.call_later(down_s, self._start)

    def _do_admin_reset(self, offset: int) -> None:
        """Reset an offset, which must be refused for a group with members."""
        if self.is_up:
            value = CommittedOffset(offset, -1, "", 0, topic_id=self._id_of("t"))
            try:
                self.coordinator.commit_offsets("g", "", None, -1, [("t", 0, value)])
            except KafkaError:
                return
            if any(client.is_sure and ("t", 0) in client.owned for client in self.clients.values()):
                raise ViolationError("offsets reset under a member", "t-0 has a reader")

    def _do_admin_delete(self) -> None:
        if self.is_up:
            try:
                self.coordinator.delete_group("g")
            except KafkaError:
                return
            if any(client.is_sure and client.owned for client in self.clients.values()):
                raise ViolationError("group deleted under a member", "it has readers")

    def _do_admin_remove(self, instance_id: str) -> None:
        """Remove a static member as an administrator."""
        if self.is_up:
            try:
                self.coordinator.leave("g", [Leaver(member_id="", instance_id=instance_id, reason="an administrator")])
            except KafkaError:
                return
            for client in self.clients.values():
                if client.instance_id == instance_id:
                    client.is_displaced = True

    # The coordinator

    def _start(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self.coordinator = GroupCoordinator(
            self.settings, self.loop.as_loop(), self.topics, clock=virtual_clock(self.loop)
        )
        self.coordinator.elected(0, self.log)
        self._checked_end = -1

    def _stop(self, *, is_clean: bool) -> None:
        self.is_up = False
        if not is_clean:
            for client in self.clients.values():
                client.disconnect()
        self.coordinator.close()

    # Promises

    def check_owners(self, client: Client, partition: TopicPartition) -> None:
        """Check for other owners when `client` starts to read `partition`."""
        for other in self.clients.values():
            if other is client or partition not in other.owned or partition in other.lost_partitions:
                continue
            where = f"{partition[0]}-{partition[1]} is read by {other.name} and {client.name}"
            if other.is_sure and client.is_sure:
                raise ViolationError("two owners that follow the protocol", where)
            are_both_known = not other.is_tainted and not client.is_tainted
            if are_both_known and other.may_commit(partition) and client.may_commit(partition):
                raise ViolationError("two owners that may commit", where)

    def check_machine(self) -> None:
        """Check the coordinator's invariants after a change of the log."""
        if self.log.end == self._checked_end or not self.is_up:
            return
        self._checked_end = self.log.end
        found = self.group()
        if found is not None:
            try:
                found.machine.check()
            except AssertionError as error:
                raise ViolationError("broken machine", str(error)) from error
        self._compare_offsets()

    def _compare_offsets(self) -> None:
        try:
            offsets = self.coordinator.committed_offsets("g")
        except KafkaError:
            return
        known = {
            OffsetKey("g", topic, index): value.offset
            for topic, partitions in offsets.items()
            for index, value in partitions.items()
        }
        if known != self.log.committed:
            raise ViolationError("offsets differ from the log", f"{known}, but the log has {self.log.committed}")

    def _check_settled(self) -> None:
        living = [client for client in self.clients.values() if client.is_alive and client.refusal is None]
        self.check_machine()
        found = self.group()
        wanted = {topic for client in living for topic in self.subscription_of(client)}
        for topic in sorted(wanted):
            for index in range(self.topics.counts[topic]):
                owners = [client.name for client in living if (topic, index) in client.owned]
                is_unassigned = found is not None and found.is_classic and (topic, index) in self._unassigned
                if len(owners) != 1 and not (is_unassigned and not owners):
                    names = " and ".join(owners) or "nobody"
                    raise ViolationError("not settled", f"{topic}-{index} is read by {names}; {self._state()}")
        if not living:
            if found is not None and not found.machine.is_empty:
                raise ViolationError("not settled", f"all clients are gone, but {self._state()}")
            return
        assert found is not None
        known = set(found.machine.membership.members if found.is_classic else found.machine.known.members)
        if known != {client.member_id for client in living}:
            raise ViolationError("not settled", f"{self._state()}, but {[client.member_id for client in living]} live")
        stable = GroupState.STABLE if found.is_classic else ConsumerGroupState.STABLE
        if found.machine.state != stable:
            raise ViolationError("not settled", self._state())
        if found.is_classic and any(client.kind == "consumer" for client in living):
            raise ViolationError("not settled", "a member of the consumer protocol in a classic group")

    def _state(self) -> str:
        found = self.group()
        if found is None:
            return "the group does not exist"
        members = found.machine.membership.members if found.is_classic else found.machine.known.members
        return f"the group is {found.machine.state} with {sorted(members)}"

    def _restart_and_compare(self) -> None:
        """Check that a restarted coordinator reads the same state from the log."""
        before = self._snapshot()
        self._stop(is_clean=True)
        self.log.compact()
        self._start()
        self.loop.run_until(self.loop.now)
        after = self._snapshot()
        if before != after:
            raise ViolationError("reload differs", f"{after}, but was {before}")

    def _snapshot(self) -> object:
        self._compare_offsets()
        found = self.group()
        if found is None:
            return None
        machine = found.machine
        if isinstance(machine, ConsumerGroup):
            known = machine.known
            return (known.epoch, known.assignment_epoch, known.members, known.target, known.owners)
        assert isinstance(machine, ClassicGroup)
        if any(act.kind == "refuse" for act in self.history.acts):
            return None  # as in Kafka, memory keeps a generation that was not written
        return machine.generation, machine.protocol_name, sorted(machine.metadata().members)


def play(history: History, trace: list[str] | None = None) -> ViolationError | None:
    """Return the first broken promise, if any; exceptions of the coordinator count too."""
    try:
        World(history, trace=trace).run()
    except ViolationError as violation:
        return violation
    except AssertionError as error:
        return ViolationError("assertion", repr(error))
    except Exception as error:  # noqa: BLE001  # any exception is a failure
        return ViolationError(f"exception {type(error).__name__}", repr(error))
    return None


def explain(history: History, violation: ViolationError) -> str:
    """Return the report of a failing seed."""

    def fails(shorter: History) -> bool:
        found = play(shorter)
        return found is not None and found.promise == violation.promise

    short = acts.shortest(history, fails)
    trace: list[str] = []
    found = play(short, trace)
    return acts.report("groups", history, short, violation, [*trace, str(found)])
