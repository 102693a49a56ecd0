"""Plans of moves: even, over racks, with as few copies as possible, and never with fewer live replicas."""

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.cli.failures import CommandError
from headrace.cli.placement.plan import Move, Plan, plan, target_brokers
from headrace.cli.placement.state import Partition, State
from tests.support.examples import examples
from tests.support.placements import partition, state


def planned(cluster: State, brokers: Collection[int] | None = None, **options: int | bool) -> Plan:
    brokers = set(cluster.brokers) if brokers is None else brokers
    return plan(cluster, list(cluster.partitions.values()), brokers, **options)  # type: ignore[arg-type]


def ring(partitions: int, brokers: int) -> list[tuple[str, int, list[int]]]:
    """Return an even assignment of two replicas."""
    return [("t", n, [n % brokers + 1, (n + 1) % brokers + 1]) for n in range(partitions)]


def after(cluster: State, found: Plan) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return all replicas after the plan."""
    before = {one.place: one.replicas for one in cluster.partitions.values()}
    return before | {move.place: move.after for move in found.moves}


def loads(cluster: State, found: Plan) -> Counter[int]:
    """Return how many replicas each broker has after the plan."""
    return Counter(broker for replicas in after(cluster, found).values() for broker in replicas)


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    cluster = state(range(1, 5), [partition(*one) for one in ring(12, 3)])
    found = planned(cluster)
    assert loads(cluster, found) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert [broker for move in found.moves for broker in move.added] == [4] * 6


def test_a_retired_broker_is_emptied() -> None:
    cluster = state(range(1, 5), [partition(*one) for one in ring(12, 4)])
    found = planned(cluster, {1, 2, 3})
    assert 4 not in loads(cluster, found)
    assert found.added == 6


def test_preferred_leaders_are_spread_without_copying() -> None:
    cluster = state((1, 2), [partition("t", number, (1, 2)) for number in range(4)])

    found = planned(cluster)

    assert found.added == 0
    assert Counter(replicas[0] for replicas in after(cluster, found).values()) == {1: 2, 2: 2}


def test_more_replicas_are_spread_evenly() -> None:
    cluster = state(range(1, 4), [partition("t", number, [number % 3 + 1]) for number in range(6)])
    found = planned(cluster, replication_factor=2)
    assert loads(cluster, found) == {1: 4, 2: 4, 3: 4}
    assert found.added == 6


def test_new_replicas_of_a_small_topic_go_to_the_broker_with_fewest_other_replicas() -> None:
    others = [partition("busy", number, [1, 2]) for number in range(5)]
    one = partition("t", 0, [1])
    cluster = state((1, 2, 3), [*others, one])

    [move] = plan(cluster, [one], {1, 2, 3}, replication_factor=2).moves

    assert move.added == (3,)


def test_fewer_replicas_keep_those_in_sync() -> None:
    cluster = state((1, 2, 3), [partition("t", 0, (1, 2, 3), isr=(3,))])

    [move] = planned(cluster, replication_factor=1).moves

    assert move.after == (3,)


def test_replicas_are_in_different_racks() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    cluster = state(racks, [partition("t", number, (1, 2)) for number in range(4)])

    for replicas in after(cluster, planned(cluster)).values():
        assert {racks[broker] for broker in replicas} == {"a", "b"}


def test_racks_can_be_ignored() -> None:
    cluster = state({1: "a", 2: "a", 3: "b"}, [partition(*one) for one in ring(3, 3)])

    assert planned(cluster, ignore_racks=True).moves == []


@pytest.mark.parametrize(
    ("brokers", "found", "replication_factor", "problem"),
    [
        ({1: "a", 2: None}, partition("t", 0, (1,)), 1, "broker 2 has no rack"),
        ((1, 2), partition("t", 0, (1, 2), adding=(2,), removing=(1,)), 2, "t:0 is already being reassigned"),
        ((1, 2), partition("t", 0, (1, 2)), 3, "t:0 cannot have 3 replicas on 2 brokers"),
    ],
)
def test_an_impossible_plan_is_an_error(brokers: Any, found: Partition, replication_factor: int, problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        planned(state(brokers, [found]), replication_factor=replication_factor)


def test_partitions_without_a_leader_stay() -> None:
    cluster = state((1, 2), [partition("t", 0, (1,), leader=None), partition("t", 1, (1,)), partition("t", 2, (1,))])

    found = planned(cluster)

    assert found.leaderless == [("t", 0)]
    assert [move.partition for move in found.moves] == [1]


def test_bytes_count_every_new_replica() -> None:
    assert Move("t", 0, (1,), (1, 2, 3), 100).bytes == 200
    assert Move("t", 0, (1,), (1, 2, 3), None).bytes is None
    assert Move("t", 0, (1, 2), (2,), None).bytes == 0


def test_by_default_the_brokers_with_replicas_are_used() -> None:
    cluster = state((1, 2, 3), [partition("t", 0, (1, 2))])

    assert target_brokers(cluster) == {1, 2}
    assert target_brokers(cluster, add=[3], retire=[1]) == {2, 3}
    assert target_brokers(cluster, only=[3]) == {3}


def test_a_dead_broker_must_be_retired_explicitly() -> None:
    cluster = state((1, 2), [partition("t", 0, (1, 5), isr=(1,))])

    with pytest.raises(CommandError, match="broker 5 has replicas, but is not alive") as raised:
        target_brokers(cluster)
    assert "--retire 5" in str(raised.value.hint)
    assert target_brokers(cluster, add=[2], retire=[5]) == {1, 2}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"add": [9]}, "broker 9"),
        ({"only": [1, 9]}, "broker 9"),
        ({"retire": [9]}, "broker 9"),
        ({"retire": [1, 2]}, "no broker would be left"),
    ],
)
def test_brokers_must_be_known_and_one_must_be_left(options: dict[str, list[int]], problem: str) -> None:
    with pytest.raises(CommandError, match=problem):
        target_brokers(state((1, 2), [partition("t", 0, (1, 2))]), **options)


@st.composite
def clusters(draw: st.DrawFn) -> State:
    """Clusters in which some brokers are dead, and every partition has a leader."""
    live = list(range(1, draw(st.integers(1, 6)) + 1))
    dead = list(range(7, 7 + draw(st.integers(0, 2))))
    racks: dict[int, str | None] = {broker: draw(st.sampled_from("abc")) for broker in live}
    partitions = []
    for topic in ("t", "u"):
        for number in range(draw(st.integers(1, 6))):
            replicas = draw(st.permutations(live + dead))[: draw(st.integers(1, len(live)))]
            alive = [broker for broker in replicas if broker in live]
            if alive:
                isr = draw(st.lists(st.sampled_from(alive), min_size=1, unique=True))
                partitions.append(partition(topic, number, replicas, isr))
    return state(racks, partitions)


@given(clusters())
@settings(max_examples=examples(30), deadline=None)
def test_live_replicas_never_become_fewer_and_afterwards_there_is_nothing_to_plan(cluster: State) -> None:
    found = planned(cluster)

    for move in found.moves:
        before = [broker for broker in move.before if broker in cluster.brokers]
        assert set(move.after) <= set(cluster.brokers)
        assert len(move.after) == len(set(move.after)) == len(move.before) >= len(before)
    done = [partition(*place, replicas) for place, replicas in after(cluster, found).items()]
    racks = {broker: found.rack for broker, found in cluster.brokers.items()}
    assert planned(state(racks, done)).moves == []


@given(clusters())
@settings(max_examples=examples(30), deadline=None)
def test_without_racks_loads_differ_by_one_at_most(cluster: State) -> None:
    found = planned(cluster, ignore_racks=True)

    numbers = [loads(cluster, found)[broker] for broker in cluster.brokers]
    assert max(numbers) - min(numbers) <= 1


TWO_OUT_OF_SYNC = [
    partition("t", 0, (2, 3), isr=(3,)),
    partition("t", 1, (1,)),
    partition("t", 2, (2,)),
    partition("t", 3, (1, 2), isr=(2,)),
]


@given(clusters())
@example(cluster=state((1, 2, 3), TWO_OUT_OF_SYNC))
@settings(max_examples=examples(30), deadline=None)
def test_replicas_out_of_sync_cause_no_further_new_replicas(cluster: State) -> None:
    in_sync = [
        replace(one, isr=tuple(broker for broker in one.replicas if broker in cluster.brokers))
        for one in cluster.partitions.values()
    ]
    racks = {broker: found.rack for broker, found in cluster.brokers.items()}
    assert planned(cluster).added == planned(state(racks, in_sync)).added
