"""Problems of a cluster."""

from dataclasses import replace

import pytest

from headrace.cli.overview_tables import print_state
from headrace.cli.placement.state import OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED
from tests.support.placements import partition, state


def test_problems_of_a_partition() -> None:
    problems = {
        partition("t", 0, (1, 2)): None,
        partition("t", 0, (1, 2), isr=(1,)): UNDER_REPLICATED,
        partition("t", 0, (1, 2), isr=(1,), min_isr=1): UNDER_REPLICATED,
        partition("t", 0, (1, 2), isr=(1,), min_isr=2): UNDER_MIN_ISR,
        partition("t", 0, (1, 2), isr=(1,), leader=None, min_isr=2): OFFLINE,
        partition("t", 0, (1, 2, 3), isr=(1, 2), adding=(3,)): None,
        partition("t", 0, (1, 2, 3), isr=(1,), adding=(3,)): UNDER_REPLICATED,
    }
    assert {found: found.problem for found in problems} == problems


def test_a_cluster_is_healthy_with_a_controller_and_all_replicas() -> None:
    healthy = state((1, 2), [partition("t", 0, (1, 2))])
    assert healthy.is_healthy
    assert state((1,), []).is_healthy
    assert not replace(healthy, controller=None).is_healthy


def test_a_broker_with_replicas_that_is_not_alive_is_missing() -> None:
    found = state((1,), [partition("t", 0, (1, 2), isr=(1,))])
    assert found.missing_brokers == [2]
    assert not found.is_healthy


def test_a_move_has_replicas_before_and_after() -> None:
    moving = partition("t", 0, (3, 1, 2), isr=(1, 2), adding=(3,), removing=(1,))
    assert moving.original == (1, 2)
    assert moving.target == (3, 2)


def test_bytes_left_are_those_that_new_replicas_lack() -> None:
    place = ("t", 0)
    moving = partition("t", 0, (4, 3, 1), isr=(1, 4), leader=1, adding=(3, 4))
    found = state((1, 3, 4), [moving], replica_sizes={(place, 1): 100, (place, 3): 30, (place, 4): 90})
    assert found.bytes_left(moving) == 70
    assert found.bytes_copied(moving) == 120
    assert state((1, 3, 4), [moving]).bytes_left(moving) is None


def test_the_size_is_that_of_the_leader_or_else_of_the_largest_replica() -> None:
    place = ("t", 0)
    sizes = {(place, 1): 5, (place, 2): 9}
    assert state((1, 2), [partition("t", 0, (1, 2))], replica_sizes=sizes).size(place) == 5
    assert state((1, 2), [partition("t", 0, (1, 2), leader=None)], replica_sizes=sizes).size(place) == 9


def test_the_table_of_brokers_counts_replicas_out_of_sync(capsys: pytest.CaptureFixture[str]) -> None:
    print_state(state((1, 2, 3), [partition("t", 0, (1, 2, 3), isr=(1,), adding=(3,))]))
    lines = [line.lower().split("\t") for line in capsys.readouterr().out.splitlines()]
    place = next(line.index("not_in_isr") for line in lines if "not_in_isr" in line)
    counts = {line[0]: line[place] for line in lines if len(line) > place and line[0] in {"1", "2", "3"}}
    assert counts == {"1": "0", "2": "1", "3": "0"}
