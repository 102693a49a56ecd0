"""Histories in which groups once broke their promises, and faults that break them."""

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.history import history_of
from tests.simulation.world import play
from tests.simulation.worlds import WORLDS

_SEEDS_PER_FAULT = 600
_RARE = {
    "removed member keeps its partitions": 105,
    "downgraded group does not rebalance": 165,
    "generation is not checked": 240,
    "upgrade treats unrevoked partitions as free": 778,
    "assignment is sent once": 1200,
    "downgraded group does not rebalance after a reload": 1426,
    "timers fire in a batch": 8020,
}
"""The first seed to play, for faults that only one history in a hundred, or in a thousand, reveals."""


@pytest.mark.parametrize(
    "seed",
    [
        101234,  # a compacted log loses part of a former batch
        103025,  # a topic grows while its static leader is away
        104687,  # a member is replaced by one whose join is not answered yet
        112822,  # partitions are revoked by a heartbeat whose answer is lost
        115674,  # a join is under way while others fill the group
        228658,  # an upgrade during a rebalance that was lost in a restart
        239276,  # an upgrade before any member sees that a topic has grown
        236969,  # the log loses a topic's growth, and the static leader returns to an earlier generation
        250210,  # a member gets a new assignment before it learns that the log has lost its former one
        203349,  # a member hangs with partitions that the log has lost
        20581,  # a static member returns to the subscription in the log instead of its latest one
        21130,  # a static member is replaced by a join whose answer is lost
    ],
)
def test_former_failures(seed: int) -> None:
    failure = WORLDS["groups"].failure(history_of(seed))
    if failure is not None:
        pytest.fail(failure, pytrace=False)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_found(fault: str) -> None:
    with FAULTS[fault]():
        first = _RARE.get(fault, 0)
        assert any(play(history_of(seed)) is not None for seed in range(first, first + _SEEDS_PER_FAULT))
