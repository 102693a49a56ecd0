"""Previews of leader elections."""

import pytest

from headrace.cli.placement.elections import IMPOSSIBLE, NOT_NEEDED, POSSIBLE, preview
from headrace.cli.placement.state import Partition
from tests.support.placements import partition, state


@pytest.mark.parametrize(
    ("unclean", "found", "after", "result", "reason"),
    [
        (False, partition("t", 0, (1, 2)), 1, NOT_NEEDED, "led by its preferred replica"),
        (False, partition("t", 0, (1, 2), isr=(2, 1)), 1, POSSIBLE, None),
        (False, partition("t", 0, (1, 2), isr=(2,)), None, IMPOSSIBLE, "broker 1 is not in sync"),
        (False, partition("t", 0, (9, 2), isr=(2,)), None, IMPOSSIBLE, "broker 9 is not alive"),
        (False, partition("t", 0, (1, 2), isr=(1,), leader=None), 1, POSSIBLE, None),
        (True, partition("t", 0, (1, 2)), 1, NOT_NEEDED, "has a leader"),
        (True, partition("t", 0, (9, 2), isr=(9,), leader=None), 2, POSSIBLE, "records may be lost"),
        (True, partition("t", 0, (1, 2), isr=(2,), leader=None), 2, POSSIBLE, None),
        (
            True,
            partition("t", 0, (9, 8), isr=(9,), leader=None),
            None,
            IMPOSSIBLE,
            "none of its brokers is alive: 9, 8",
        ),
    ],
)
def test_an_election(unclean: bool, found: Partition, after: int | None, result: str, reason: str | None) -> None:
    election = preview(state((1, 2), [found]), found, unclean=unclean)
    assert (election.after, election.state, election.reason) == (after, result, reason)
