from headrace.coordinator.groups.classic.states import GroupState
from headrace.coordinator.groups.effects import Happening
from headrace.errors import ErrorCode
from tests.unit.coordinator.driver import INITIAL_DELAY_MS, REBALANCE_MS, SESSION_MS, Driver, subscription


def test_a_new_dynamic_member_gets_an_id_and_must_rejoin_within_the_session_timeout(group: Driver) -> None:
    answer = group.join_answer(group.join(client_id="app"))
    assert answer.error is ErrorCode.member_id_required
    assert answer.member_id.startswith("app-")
    assert group.group.state is GroupState.EMPTY
    group.advance(SESSION_MS)
    assert group.join_answer(group.join(answer.member_id)).error is ErrorCode.unknown_member_id


def test_a_client_before_kip_394_joins_at_once(group: Driver) -> None:
    token = group.join(version=3)
    assert group.is_parked(token)
    assert group.group.state is GroupState.PREPARING_REBALANCE


def test_the_first_rebalance_waits_for_the_initial_delay(group: Driver) -> None:
    _, token = group.become_member()
    group.advance(INITIAL_DELAY_MS - 1)
    assert group.is_parked(token)
    group.advance(1)
    assert group.join_answer(token).generation == 1


def test_a_member_that_joins_during_the_initial_delay_extends_it(group: Driver) -> None:
    _, first = group.become_member()
    group.advance(INITIAL_DELAY_MS - 1)
    _, second = group.become_member()
    group.advance(INITIAL_DELAY_MS)
    assert group.is_parked(first)
    group.advance(1)
    assert group.join_answer(first).generation == group.join_answer(second).generation == 1


def test_the_initial_delay_ends_with_the_rebalance_timeout(group: Driver) -> None:
    tokens = [group.become_member(rebalance_ms=5000)[1]]
    for _ in range(3):
        group.advance(1500)
        tokens.append(group.become_member(rebalance_ms=5000)[1])
    group.advance(500)
    assert {group.join_answer(token).generation for token in tokens} == {1}


def test_only_the_leader_gets_all_members(group: Driver) -> None:
    leader, first = group.become_member()
    follower, second = group.become_member()
    group.finish_initial_rebalance()
    assert [member_id for member_id, _, _ in group.join_answer(first).members] == [leader, follower]
    assert group.join_answer(second).members == ()
    assert group.join_answer(second).leader == leader


def test_the_common_protocol_with_most_votes_is_chosen(group: Driver) -> None:
    a, b, c = (("a", b"1"), ("b", b"2"), ("c", b"3"))
    tokens = [group.become_member(protocols=protocols)[1] for protocols in ((c, b, a), (b, a), (a, b), (b, a))]
    group.finish_initial_rebalance()
    assert {group.join_answer(token).protocol_name for token in tokens} == {"b"}


def test_a_member_without_a_common_protocol_is_refused(group: Driver) -> None:
    group.stable()
    for token in (
        group.join(protocol_type="connect"),
        group.join(protocols=(("roundrobin", b""),)),
        group.join(protocols=()),
    ):
        assert group.join_answer(token).error is ErrorCode.inconsistent_group_protocol


def test_a_first_member_needs_a_protocol_type_and_a_protocol(group: Driver) -> None:
    assert group.join_answer(group.join(protocol_type="")).error is ErrorCode.inconsistent_group_protocol
    assert group.join_answer(group.join(protocols=())).error is ErrorCode.inconsistent_group_protocol


def test_an_empty_group_can_change_its_protocol_type(group: Driver) -> None:
    (member_id,) = group.stable()
    group.leave(member_id)
    _, token = group.become_member(protocol_type="connect", protocols=(("sessioned", b""),))
    group.finish_initial_rebalance()
    assert group.join_answer(token).protocol_type == "connect"


def test_a_member_over_the_maximum_is_refused() -> None:
    group = Driver(max_size=2)
    group.stable(2)
    answer = group.join_answer(group.join())
    assert answer.error is ErrorCode.group_max_size_reached
    assert answer.member_id == ""


def test_the_last_to_rejoin_is_refused_if_the_maximum_was_reduced() -> None:
    wide = Driver()
    first, second = wide.stable(2)
    narrow = Driver(max_size=1)
    narrow.group.restore(wide.records[-1])
    narrow._do(narrow.group.loaded(narrow.now))
    token = narrow.join(second)
    assert narrow.join_answer(narrow.join(first)).error is ErrorCode.group_max_size_reached
    assert narrow.join_answer(token).leader == second
    assert list(narrow.group.membership.members) == [second]


def test_an_unknown_member_id_is_refused(group: Driver) -> None:
    group.stable()
    assert group.join_answer(group.join("stranger")).error is ErrorCode.unknown_member_id


def test_a_follower_that_rejoins_unchanged_gets_the_current_generation(group: Driver) -> None:
    leader, follower = group.stable(2)
    answer = group.join_answer(group.join(follower))
    assert (answer.error, answer.generation, answer.leader) == (ErrorCode.none, 1, leader)
    assert group.group.state is GroupState.STABLE


def test_a_leader_that_rejoins_starts_a_rebalance(group: Driver) -> None:
    leader, follower = group.stable(2)
    token = group.join(leader)
    assert group.is_parked(token)
    assert group.heartbeat(follower) is ErrorCode.rebalance_in_progress


def test_a_follower_with_other_topics_starts_a_rebalance_and_the_change_is_noted_once(group: Driver) -> None:
    leader, follower = group.stable(2)
    group.join(follower, protocols=(("range", subscription("t", "u")),))
    (note,) = [note for note in group.notes if note.what is Happening.SUBSCRIBED]
    assert (note.member_id, note.reason) == (follower, "t -> t, u")

    group.timed_notes.clear()
    group.join(leader)
    assert Happening.SUBSCRIBED not in group.happened()
    assert group.group.generation == 2
    assert group.group.is_subscribed_to("u")


def test_a_member_that_missed_the_answer_gets_it_again(group: Driver) -> None:
    member_id, first = group.become_member()
    group.finish_initial_rebalance()
    again = group.join_answer(group.join(member_id))
    assert again == group.join_answer(first)


def test_a_second_join_of_a_waiting_member_replaces_the_first(group: Driver) -> None:
    member_id, first = group.become_member()
    second = group.join(member_id)
    group.finish_initial_rebalance()
    assert group.join_answer(first).error is ErrorCode.rebalance_in_progress
    assert group.join_answer(second).error is ErrorCode.none


def test_a_parked_new_member_is_removed_after_five_minutes(group: Driver) -> None:
    leader, _ = group.stable(2, rebalance_ms=1_800_000, session_ms=600_000)
    _, token = group.become_member(rebalance_ms=1_800_000, session_ms=600_000)
    group.advance(5 * 60_000)
    assert group.join_answer(token).error is ErrorCode.unknown_member_id
    assert leader in group.group.membership.members


def test_members_that_do_not_rejoin_in_time_are_removed(group: Driver) -> None:
    leader, slow = group.stable(2, session_ms=REBALANCE_MS * 2)
    token = group.join(leader)
    group.advance(REBALANCE_MS)
    assert group.join_answer(token).generation == 2
    assert slow not in group.group.membership.members
    assert group.heartbeat(slow) is ErrorCode.unknown_member_id
    assert Happening.NOT_REJOINED in group.happened()


def test_another_member_leads_if_the_leader_does_not_rejoin(group: Driver) -> None:
    leader, follower = group.stable(2, session_ms=REBALANCE_MS * 2)
    token = group.join(follower, protocols=(("range", subscription("u")),))
    group.advance(REBALANCE_MS)
    assert group.join_answer(token).leader == follower
    assert leader not in group.group.membership.members
    assert Happening.BECAME_LEADER in group.happened()
