"""Short versions of the proofs that `make proofs` runs."""

from pathlib import Path

import pytest

from tests.cluster.proofs import kills, moves, pauses

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
