"""Random histories of three replicas and a controller, with the invariants of replication checked after every step.

Every broker can lead. Replies of leaders and answers of the controller arrive late, out of order, or never. Planted
faults show that the invariants notice the mistakes that lose records.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random
from typing import NamedTuple

import pytest

from headrace.errors import ErrorCode
from headrace.replication.leading.leader_state import Committed, Follower, LeaderState, Proposal

BROKERS = (1, 2, 3)
MAX_LAG_MS = 100
MIN_ISR = 2
SEEDS = 120
SEEDS_PER_BLOCK = 20
STEPS = 400


class ViolationError(AssertionError):
    """An invariant does not hold."""


class State(NamedTuple):
    """The partition in the controller's store."""

    leader: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...] = BROKERS
    adding_replicas: tuple[int, ...] = ()


class Record(NamedTuple):
    epoch: int
    value: int


class Broker:
    def __init__(self, broker_id: int, new_state: Callable[..., LeaderState]) -> None:
        self.id = broker_id
        self.log: list[Record] = []
        self.high_watermark = 0
        self.leading: LeaderState | None = None
        self.state: State | None = None
        self.new_state = new_state
        self.waiting: list[int] = []
        """End offsets of acks=all appends that are not acknowledged yet."""


class World:
    def __init__(self, seed: int, state_class: type[LeaderState]) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self.alive = set(BROKERS)
        self.brokers = {broker: Broker(broker, state_class) for broker in BROKERS}
        self.store = State(1, 0, 0, BROKERS)
        self.in_flight: list[tuple[Broker, Proposal]] = []
        self.answers: list[tuple[Broker, Proposal, Committed | ErrorCode]] = []
        self.states: list[tuple[int, State]] = []
        self.fetched: list[tuple[Broker, Broker, int, int, list[Record], int]] = []
        self.shown: list[Record] = []
        """Records that consumers have seen."""
        self.acknowledged: list[tuple[int, Record]] = []
        self.value = 0
        for broker in BROKERS:
            self.command(broker, self.store)

    def run(self) -> None:
        actions: Sequence[tuple[Callable[[], None], float]] = (
            (self.produce, 6),
            (self.fetch, 14),
            (self.receive, 14),
            (self.tick, 2),
            (self.control, 5),
            (self.answer, 5),
            (self.deliver, 10),
            (self.repeat_state, 1),
            (self.crash, 0.6),
            (self.come_back, 3),
        )
        methods = [method for method, _ in actions]
        weights = list(accumulate(weight for _, weight in actions))
        for _ in range(STEPS):
            [action] = self.random.choices(methods, cum_weights=weights)
            action()
            self.check()

    # Brokers

    def leader(self) -> Broker | None:
        leaders = [broker for broker in self.brokers.values() if broker.leading and broker.id in self.alive]
        return self.random.choice(leaders) if leaders else None

    def produce(self) -> None:
        leader = self.leader()
        if leader is None or not leader.leading or not leader.leading.has_enough_in_sync(MIN_ISR):
            return
        for _ in range(self.random.randint(1, 5)):
            self.value += 1
            leader.log.append(Record(leader.leading.leader_epoch, self.value))
        leader.leading.own_end = len(leader.log)
        leader.waiting.append(len(leader.log))
        self.advance(leader)

    def fetch(self) -> None:
        follower = self.brokers[self.random.choice(BROKERS)]
        if follower.id not in self.alive or follower.leading or follower.state is None or follower.state.leader < 0:
            return
        leader = self.brokers[follower.state.leader]
        leading = leader.leading
        if leader.id not in self.alive or not leading or leading.leader_epoch != follower.state.leader_epoch:
            return
        if follower.id not in leading.followers:
            return
        common = 0
        for ours, theirs in zip(follower.log, leader.log, strict=False):
            if ours != theirs:
                break
            common += 1
        if common < len(follower.log):  # as the diverging epoch in a reply requires
            del follower.log[common:]
            follower.high_watermark = min(follower.high_watermark, common)
            return
        end = len(follower.log)
        moved = leading.fetched(
            follower.id, offset=end, log_start_offset=0, log_end=len(leader.log), broker_epoch=-1, now_ms=self.now_ms
        )
        self.send(leader, leading.expand(follower.id, leader.high_watermark))
        if moved:
            self.advance(leader)
        count = self.random.randint(0, 6)
        records = leader.log[end : end + count]
        self.fetched.append((leader, follower, leading.leader_epoch, end, records, leader.high_watermark))

    def receive(self) -> None:
        if not self.fetched:
            return
        _, follower, epoch, at, records, high_watermark = self.fetched.pop(self.random.randrange(len(self.fetched)))
        if follower.leading or follower.state is None or follower.state.leader_epoch != epoch:
            return
        if len(follower.log) == at and follower.id in self.alive:
            follower.log += records
            follower.high_watermark = max(follower.high_watermark, min(high_watermark, len(follower.log)))

    def advance(self, leader: Broker) -> None:
        assert leader.leading is not None
        end = leader.leading.committed_end(log_end=len(leader.log), min_insync_replicas=MIN_ISR, now_ms=self.now_ms)
        leader.high_watermark = max(leader.high_watermark, end)
        for required in [end for end in leader.waiting if end <= leader.high_watermark]:
            leader.waiting.remove(required)
            copies = sum(broker.log[:required] == leader.log[:required] for broker in self.brokers.values())
            if copies < MIN_ISR:
                raise ViolationError(f"acknowledged with {copies} copies")
            self.acknowledged.append((required - 1, leader.log[required - 1]))
        for offset in range(len(self.shown), leader.high_watermark):
            self.shown.append(leader.log[offset])
        if self.shown[: leader.high_watermark] != leader.log[: leader.high_watermark]:
            raise ViolationError("a leader shows other records below the high watermark")

    def tick(self) -> None:
        self.now_ms += self.random.randint(1, MAX_LAG_MS)
        leader = self.leader()
        if leader is not None and leader.leading is not None:
            self.send(leader, leader.leading.shrink(len(leader.log), self.now_ms))

    def send(self, leader: Broker, proposal: Proposal | None) -> None:
        if proposal is not None:
            self.in_flight.append((leader, proposal))

    # The controller

    def control(self) -> None:
        """Handle one AlterPartition; sometimes the answer is lost, and the broker repeats it."""
        if not self.in_flight:
            return
        leader, proposal = self.in_flight.pop(0)
        answer = self.decide(proposal, leader.id)
        if self.random.random() < 0.2:
            self.in_flight.append((leader, proposal))
        else:
            self.answers.append((leader, proposal, answer))

    def decide(self, proposal: Proposal, leader: int) -> Committed | ErrorCode:
        store = self.store
        if store.leader != leader or store.leader_epoch != proposal.leader_epoch:
            return ErrorCode.fenced_leader_epoch
        if proposal.members == set(store.isr):
            return Committed(store.leader_epoch, store.partition_epoch, store.isr)
        if store.partition_epoch != proposal.partition_epoch:
            return ErrorCode.invalid_update_version
        if not proposal.members <= self.alive or self.random.random() < 0.1:
            return ErrorCode.ineligible_replica
        self.store = store._replace(partition_epoch=store.partition_epoch + 1, isr=tuple(sorted(proposal.members)))
        if self.random.random() < 0.1:
            return ErrorCode.unknown_server_error  # the controller does not know that the change was written
        return Committed(store.leader_epoch, self.store.partition_epoch, self.store.isr)

    def answer(self) -> None:
        if not self.answers:
            return
        leader, proposal, answer = self.answers.pop(self.random.randrange(len(self.answers)))
        leading = leader.leading
        if leading is None or leader.id not in self.alive:
            return
        if isinstance(answer, Committed):
            if leading.confirmed(proposal, answer):
                self.advance(leader)
        elif leading.refused(proposal, answer):
            self.in_flight.append((leader, proposal))

    def repeat_state(self) -> None:
        """Take office, as a new controller that sends what it has read."""
        for broker in self.alive:
            self.command(broker, self.store)

    def command(self, broker: int, state: State) -> None:
        self.states.append((broker, state))

    def deliver(self) -> None:
        if not self.states:
            return
        # Commands to one broker arrive in order.
        broker_id = self.random.choice([broker for broker, _ in self.states])
        at = next(place for place, (broker, _) in enumerate(self.states) if broker == broker_id)
        _, state = self.states.pop(at)
        broker = self.brokers[broker_id]
        if broker_id not in self.alive:
            return
        if broker.state is not None and state.leader_epoch < broker.state.leader_epoch:
            return
        broker.state = state
        if state.leader != broker_id:
            broker.leading = None
            broker.waiting.clear()
            return
        if broker.leading is None:
            broker.leading = broker.new_state(
                broker_id, max_lag_ms=lambda: MAX_LAG_MS, is_alive=lambda other: other in self.alive
            )
            broker.leading.own_end = len(broker.log)
        if broker.leading.lead(state, log_end=len(broker.log), now_ms=self.now_ms):
            self.advance(broker)

    def crash(self) -> None:
        """End a process; the controller elects another leader from the ISR, or none."""
        if len(self.alive) < 2:
            return
        broker = self.brokers[self.random.choice(sorted(self.alive))]
        self.alive.discard(broker.id)
        broker.leading = None
        broker.state = None
        broker.waiting.clear()
        self.states = [(to, state) for to, state in self.states if to != broker.id]
        self.in_flight = [item for item in self.in_flight if item[0] is not broker]
        self.answers = [item for item in self.answers if item[0] is not broker]
        self.elect(gone=broker.id)

    def come_back(self) -> None:
        down = sorted(set(BROKERS) - self.alive)
        if down:
            broker = self.random.choice(down)
            self.alive.add(broker)
            self.elect()
            self.command(broker, self.store)

    def elect(self, gone: int | None = None) -> None:
        store = self.store
        isr = tuple(broker for broker in store.isr if broker != gone) or store.isr
        live = [broker for broker in isr if broker in self.alive]
        if store.leader in live and store.leader != gone and isr == store.isr:
            return
        leader = store.leader if store.leader in live and gone != store.leader else next(iter(live), -1)
        self.store = State(leader, store.leader_epoch + 1, store.partition_epoch + 1, isr)
        for broker in sorted(self.alive):
            self.command(broker, self.store)

    # Invariants

    def check(self) -> None:
        store = self.store
        for broker in self.brokers.values():
            leading = broker.leading
            if leading is None or broker.id not in self.alive or leading.leader_epoch != store.leader_epoch:
                continue
            if not leading.maximal_isr >= set(store.isr):
                raise ViolationError(
                    f"the controller has ISR {store.isr}, its leader at most {set(leading.maximal_isr)}"
                )
        for member in store.isr:
            log = self.brokers[member].log
            if log[: len(self.shown)] != self.shown:
                raise ViolationError(f"broker {member} is in the ISR without records that consumers have seen")
            for offset, record in self.acknowledged:
                if offset >= len(log) or log[offset] != record:
                    raise ViolationError(f"broker {member} is in the ISR without the acknowledged offset {offset}")


def test_nothing_is_lost_in_random_histories_with_every_change() -> None:
    worlds = run_all(LeaderState, range(SEEDS_PER_BLOCK))
    assert sum(len(world.acknowledged) for world in worlds) > 100
    assert all(world.store.partition_epoch > 3 for world in worlds)
    assert any(world.store.leader_epoch > 4 for world in worlds)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(SEEDS_PER_BLOCK, SEEDS, SEEDS_PER_BLOCK))
def test_nothing_is_lost_in_other_random_histories(first: int) -> None:
    run_all(LeaderState, range(first, first + SEEDS_PER_BLOCK))


class ShowsItsOwnEnd(LeaderState):
    """Planted fault: the high watermark is beyond the log ends of the ISR."""

    def committed_end(self, *, log_end: int, min_insync_replicas: int, now_ms: int) -> int:
        return self.own_end if self.has_enough_in_sync(min_insync_replicas) else -1


class ShrinksBeforeTheAnswer(LeaderState):
    def shrink(self, log_end: int, now_ms: int) -> Proposal | None:
        proposal = super().shrink(log_end, now_ms)
        if proposal is not None:
            self.maximal_isr = proposal.members
        return proposal


class ExpandsAfterTheAnswer(LeaderState):
    """Planted fault: the high watermark does not wait for a joining follower."""

    def expand(self, replica: int, high_watermark: int) -> Proposal | None:
        proposal = super().expand(replica, high_watermark)
        if proposal is not None:
            self.maximal_isr = self.isr
        return proposal


class ExpandsBelowTheEpoch(LeaderState):
    def _may_join(self, follower: Follower, high_watermark: int) -> bool:
        return follower.end_offset >= high_watermark


class ExpandsBelowTheHighWatermark(LeaderState):
    def _may_join(self, follower: Follower, high_watermark: int) -> bool:
        return follower.end_offset >= self.epoch_start


class AcknowledgesUnderMinIsr(LeaderState):
    def has_enough_in_sync(self, min_insync_replicas: int) -> bool:
        return True


class UndoesUnknownOutcomes(LeaderState):
    """Planted fault: the leader returns to the previous ISR after any error."""

    def refused(self, proposal: Proposal, error: ErrorCode) -> bool:
        return super().refused(proposal, ErrorCode.ineligible_replica)


class ForgetsPendingChanges(LeaderState):
    """Planted fault: a repeated LeaderAndIsr ends a change that the controller may still apply."""

    def lead(self, state: object, *, log_end: int, now_ms: int) -> bool:
        self._needs_newer = False
        return super().lead(state, log_end=log_end, now_ms=now_ms)  # type: ignore[arg-type]


class IgnoresLeaderEpochs(LeaderState):
    """Planted fault: an answer to an earlier change is accepted."""

    def confirmed(self, proposal: Proposal, committed: Committed) -> bool:
        self.isr = self.maximal_isr = frozenset(committed.isr)
        self.pending = None
        return True


FAULTS = (
    ShowsItsOwnEnd,
    ShrinksBeforeTheAnswer,
    ExpandsAfterTheAnswer,
    ExpandsBelowTheEpoch,
    ExpandsBelowTheHighWatermark,
    AcknowledgesUnderMinIsr,
    UndoesUnknownOutcomes,
    ForgetsPendingChanges,
    IgnoresLeaderEpochs,
)


def test_planted_faults_are_found() -> None:
    assert [fault.__name__ for fault in FAULTS if not is_found(fault)] == []


def is_found(fault: type[LeaderState]) -> bool:
    try:
        run_all(fault, range(SEEDS))
    except ViolationError:
        return True
    return False


def run_all(state_class: type[LeaderState], seeds: range) -> list[World]:
    worlds = []
    for seed in seeds:
        world = World(seed, state_class)
        worlds.append(world)
        try:
            world.run()
        except ViolationError as error:
            error.add_note(f"seed {seed}")
            raise
    return worlds
