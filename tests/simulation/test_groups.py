"""Whatever happens to its members and its coordinator, a group keeps its promises (see `world`)."""

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.history import history_of
from tests.simulation.report import explain
from tests.simulation.world import play

SEEDS = 2000
"""In CI; `make simulation SEEDS=100000` plays more."""
_AT_ONCE = 100
_SEEDS_PER_FAULT = 600
_RARE = {
    "upgrade takes partitions that are given up for free": 778,
    "downgraded group does not rebalance after a reload": 1426,
    "timers fire in a batch": 8020,
}
"""Faults that only one history in a thousand or so brings to light: a seed that does."""


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """The machines log every refused write."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_groups_keep_their_promises(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        history = history_of(seed)
        violation = play(history)
        if violation is not None:
            pytest.fail(explain(history, violation), pytrace=False)


@pytest.mark.parametrize(
    "seed",
    [
        101234,  # a log that was compacted, and then cut in the middle of what had been one batch
        103025,  # a topic that grew while its static leader was away
        104687,  # a member whose place was taken by one that was not told so yet
        112822,  # partitions to give up since a heartbeat whose answer was lost
        115674,  # a join that was on its way while others filled the group
        228658,  # an upgrade in the middle of a rebalance that a restart had made forgotten
        239276,  # an upgrade before anybody had seen that a topic had grown
        236969,  # a static leader that came back to a generation before the growth that the log had lost
        250210,  # a member that hears of a newer assignment before it knows that the log has lost its former one
        203349,  # a member that hangs with partitions which the log does not know it has
        20581,  # a static member that comes back to what the log has of it, and not to what it last asked for
        21130,  # a static member whose place is taken by a join of which the answer is lost
    ],
)
def test_what_once_failed(seed: int) -> None:
    history = history_of(seed)
    violation = play(history)
    if violation is not None:
        pytest.fail(explain(history, violation), pytrace=False)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    with FAULTS[fault]():
        first = _RARE.get(fault, 0)
        assert any(play(history_of(seed)) is not None for seed in range(first, first + _SEEDS_PER_FAULT))


def test_a_seed_replays_exactly() -> None:
    first: list[str] = []
    second: list[str] = []
    assert play(history_of(7), first) is None
    assert play(history_of(7), second) is None
    assert first == second
