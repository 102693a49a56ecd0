"""Random sequences of requests, failed appends and passing time keep a classic group consistent."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.coordinator.groups.classic.states import GroupState
from headrace.errors import ErrorCode
from tests.support.examples import examples
from tests.unit.coordinator.driver import SESSION_MS, Driver, subscription

PROTOCOLS = [
    (("range", subscription("t")),),
    (("range", subscription("t")), ("sticky", subscription("t"))),
    (("sticky", subscription("t", "u")), ("range", subscription("t", "u"))),
]
INSTANCES = ["i", "j"]
picks = st.integers(0, 7)


class GroupMachine(RuleBasedStateMachine):
    """Clients that send random requests; the tokens of open requests are tracked."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(max_size=4)
        self.joins: dict[int, str | None] = {}
        self.syncs: dict[int, tuple[str, int]] = {}
        self.instances: dict[str, str] = {}
        """The static instance of every member id, also of earlier ones."""
        self.generations: list[int] = [0]
        self.gone: list[str] = []
        self.rosters: dict[int, set[str]] = {}
        """The members of every generation, as returned to its leader; static ones by instance."""

    def pick(self, index: int) -> str:
        """Pick a member, a pending member, or one that has left."""
        membership = self.driver.group.membership
        candidates = [*membership.members, *membership.pending_joins, *self.gone[-2:], "stranger"]
        return candidates[index % len(candidates)]

    @rule(protocols=st.sampled_from(PROTOCOLS), version=st.sampled_from([3, 4, 9]))
    def join_new(self, protocols: tuple[tuple[str, bytes], ...], version: int) -> None:
        self.joins[self.driver.join(protocols=protocols, version=version)] = None

    @rule(instance_id=st.sampled_from(INSTANCES), protocols=st.sampled_from(PROTOCOLS))
    def join_static(self, instance_id: str, protocols: tuple[tuple[str, bytes], ...]) -> None:
        self.joins[self.driver.join(instance_id=instance_id, protocols=protocols)] = None
        member_id = self.driver.group.membership.static.get(instance_id)
        if member_id is not None:
            self.instances[member_id] = instance_id

    @rule(index=picks, protocols=st.sampled_from(PROTOCOLS))
    def rejoin(self, index: int, protocols: tuple[tuple[str, bytes], ...]) -> None:
        member_id = self.pick(index)
        member = self.driver.group.membership.members.get(member_id)
        instance_id = None if member is None else member.instance_id
        self.joins[self.driver.join(member_id, instance_id=instance_id, protocols=protocols)] = member_id

    @rule(index=picks, stale=st.booleans())
    def sync(self, index: int, stale: bool) -> None:
        self._sync(self.pick(index), stale=stale)

    def _sync(self, member_id: str, *, stale: bool) -> None:
        group = self.driver.group
        generation = group.generation - stale
        member = group.membership.members.get(member_id)
        instance_id = None if member is None else member.instance_id
        assignments = {}
        if member_id == group.membership.leader_id:
            assignments = {other: f"{generation}:{other}".encode() for other in group.membership.members}
        token = self.driver.sync(member_id, assignments, generation=generation, instance_id=instance_id)
        self.syncs[token] = (member_id, generation)

    @rule(index=picks)
    def heartbeat(self, index: int) -> None:
        self.driver.heartbeat(self.pick(index))

    @rule(index=picks, generation=st.integers(-1, 3))
    def commit(self, index: int, generation: int) -> None:
        member_id = self.pick(index)
        error = self.driver.commit(member_id, generation=generation)
        if error is ErrorCode.none and generation >= 0:
            assert member_id in self.driver.group.membership.members
            assert generation == self.driver.group.generation

    @rule(index=picks)
    def leave(self, index: int) -> None:
        member_id = self.pick(index)
        self.gone.append(member_id)
        if self.driver.leave(member_id) is ErrorCode.none:
            assert member_id not in self.driver.group.membership.members

    @rule(instance_id=st.sampled_from(INSTANCES))
    def leave_static(self, instance_id: str) -> None:
        self.driver.leave("", instance_id=instance_id)

    @rule()
    def all_rejoin_and_sync(self) -> None:
        if self.driver.held_appends is not None:
            return
        for member in list(self.driver.group.membership.members.values()):
            if self.driver.group.state is GroupState.PREPARING_REBALANCE and member.awaiting_join is None:
                self.joins[self.driver.join(member.member_id, instance_id=member.instance_id)] = member.member_id
        self.driver.advance(3000)
        for member in list(self.driver.group.membership.members.values()):
            self._sync(member.member_id, stale=False)

    @rule(ms=st.sampled_from([1, 3000, SESSION_MS, 60_000, 300_000]))
    def wait(self, ms: int) -> None:
        self.driver.advance(ms)

    @rule(error=st.sampled_from([ErrorCode.none, ErrorCode.not_coordinator]))
    def set_append_error(self, error: ErrorCode) -> None:
        self.driver.append_error = error

    @rule()
    def delay_appends(self) -> None:
        if self.driver.held_appends is None:
            self.driver.held_appends = deque()

    @rule(error=st.sampled_from([ErrorCode.none, ErrorCode.not_coordinator]))
    def finish_append(self, error: ErrorCode) -> None:
        if self.driver.held_appends:
            self.driver.finish_append(error)

    @invariant()
    def generations_never_decrease(self) -> None:
        generation = self.driver.group.generation
        assert generation >= self.generations[-1]
        self.generations.append(generation)

    @invariant()
    def an_assignment_belongs_to_one_member_of_its_generation(self) -> None:
        for token, (member_id, generation) in list(self.syncs.items()):
            if token not in self.driver.answers:
                continue
            answer = self.driver.sync_answer(token)
            del self.syncs[token]
            if answer.error is not ErrorCode.none or not answer.assignment:
                continue
            assigned_in, _, owner = answer.assignment.decode().partition(":")
            if int(assigned_in) == generation and owner != member_id:
                # Only a static member gets an assignment of another id: its own earlier one.
                assert self.instances[owner] == self.instances[member_id]

    @invariant()
    def all_joins_of_a_generation_agree(self) -> None:
        for token in [token for token in self.joins if token in self.driver.answers]:
            answer = self.driver.join_answer(token)
            del self.joins[token]
            if answer.error is ErrorCode.none:
                assert answer.generation <= self.driver.group.generation
                assert answer.protocol_name in ("range", "sticky")
                assert (answer.leader == answer.member_id) == bool(answer.members)
                roster = {instance_id or member_id for member_id, instance_id, _ in answer.members}
                assert not roster or self.rosters.setdefault(answer.generation, roster) == roster

    @invariant()
    def all_parked_requests_belong_to_members(self) -> None:
        waiting = {m.awaiting_join for m in self.driver.group.membership.members.values()}
        assert {token for token in self.joins if self.driver.is_parked(token)} <= waiting
        waiting = {m.awaiting_sync for m in self.driver.group.membership.members.values()}
        assert {token for token in self.syncs if self.driver.is_parked(token)} <= waiting

    def teardown(self) -> None:
        """Assert that the group becomes empty after all clients have gone."""
        self.driver.append_error = ErrorCode.none
        while self.driver.held_appends:
            self.driver.finish_append()
        self.driver.held_appends = None
        self.driver.advance(3_600_000)
        assert self.driver.group.state is GroupState.EMPTY
        assert not self.driver.timers
        assert not any(self.driver.is_parked(token) for token in (*self.joins, *self.syncs))


GroupMachine.TestCase.settings = settings(max_examples=examples(25), stateful_step_count=40)
TestAnyOrder = GroupMachine.TestCase
