"""Short versions of the proofs that `make proofs` runs."""

from pathlib import Path

import pytest

from tests.cluster.proofs import failovers, kills, moves, outages, pauses, replacement, trio_kills

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_topic_moves_to_headrace_with_kafkas_tool(tmp_path: Path) -> None:
    figures = moves.run(moves.Plan(size=48 << 20, rate=8 << 20, seed=1), tmp_path, print)
    assert figures["bytes equal on all replicas"] >= 48 << 20


def test_nothing_is_lost_or_duplicated_when_brokers_are_killed(tmp_path: Path) -> None:
    figures = kills.run(kills.Plan(kills=2, seed=1), tmp_path, print)
    assert figures["transactions committed"] > 0


def test_a_leader_that_was_stopped_acknowledges_nothing_false(tmp_path: Path) -> None:
    figures = pauses.run(pauses.Plan(rounds=1, seed=1), tmp_path, print)
    assert figures["truncations by Headrace"] > 0


def test_nothing_is_lost_when_brokers_of_a_cluster_of_headrace_are_killed(tmp_path: Path) -> None:
    figures = trio_kills.run(trio_kills.Plan(kills=3, blackouts=1, seed=1), tmp_path, print)
    assert figures["transactions committed"] > 0


def test_outages_are_measured_and_no_record_fails_when_brokers_stop(tmp_path: Path) -> None:
    # The machine may be busy, so the limits are not checked. But no partition waits for the check of lagging followers.
    figures = outages.run(outages.Plan(stops=1, seed=1, is_limited=False), tmp_path, print)
    assert figures["Headrace, records acknowledged"] > 0
    assert figures["Headrace, longest outage of clean stops (ms)"] < 4000


def test_kafka_and_headrace_take_over_from_each_other_as_controllers_at_work(tmp_path: Path) -> None:
    figures = failovers.run(failovers.Plan(failovers=5, seed=1), tmp_path, print)
    assert figures["operations: create topic"] > 0


@pytest.mark.parametrize("in_place", [False, True], ids=["moved", "in place"])
def test_a_kafka_broker_is_replaced_by_headrace_and_back(tmp_path: Path, in_place: bool) -> None:
    figures = replacement.run(replacement.Plan(brokers=1, seed=1, in_place=in_place), tmp_path, print)
    assert figures["transactions with offsets"] > 0
