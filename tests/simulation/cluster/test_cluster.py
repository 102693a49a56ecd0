"""A cluster survives plots, and planted faults break its guarantees (see `world`)."""

from dataclasses import replace

import pytest

from tests.simulation.cluster.clients import ClientError
from tests.simulation.cluster.faults import FAULTS, GROUP_FAULTS
from tests.simulation.cluster.history import PLOTS, History, history_of, plotted
from tests.simulation.cluster.store import ViolationError
from tests.simulation.cluster.world import play, shortest
from tests.simulation.worlds import WORLDS

_SEEDS_PER_FAULT = 50
_PLOTS = {
    "the controller's epoch is not checked": "commands_arrive_late",
    "a replica below the start of the epoch joins": "isr_dies",
    "elections are unclean": "isr_dies",
    "a reassignment may remove the whole ISR": "isr_moves_away",
    "reassignments are not resumed": "reassignment_is_interrupted",
    "writes of the controller are not fenced": "deposed_controller_writes",
    "dead brokers join the ISR": "returning_follower_dies",
    "failed deletions are ignored": "deletion_is_not_answered",
    "producers survive a truncation": "leader_returns",
    "moved leaders keep leading": "leader_is_moved_without_session",
    "restarts of brokers are ignored": "broker_restarts_unnoticed",
}
"""The plots that reveal faults which random histories hardly ever reveal."""


@pytest.mark.parametrize("plot", PLOTS)
def test_a_cluster_survives_a_plot(plot: str) -> None:
    failure = WORLDS["cluster"].failure(plotted(0, plot))
    if failure is not None:
        pytest.fail(failure, pytrace=False)


def _reveals(history: History) -> bool:
    """Return True if a history ends with a broken promise, and not with an error of the simulation itself."""
    return isinstance(play(history), (ViolationError, ClientError))


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    plot = _PLOTS.get(fault)
    histories = (history_of(seed) if plot is None else plotted(seed, plot) for seed in range(_SEEDS_PER_FAULT))
    with FAULTS[fault]():
        assert any(map(_reveals, histories))


@pytest.mark.slow
@pytest.mark.parametrize("fault", GROUP_FAULTS)
def test_a_planted_fault_of_coordinators_is_found(fault: str) -> None:
    histories = (replace(history_of(seed), has_groups=True) for seed in range(_SEEDS_PER_FAULT))
    with GROUP_FAULTS[fault]():
        assert any(map(_reveals, histories))


@pytest.mark.slow
def test_a_failing_history_shrinks() -> None:
    with FAULTS["the leader's own end is committed"]():
        history = next(history for history in map(history_of, range(_SEEDS_PER_FAULT)) if play(history) is not None)
        short = shortest(history)
        assert play(short) is not None
        assert len(short.acts) < len(history.acts)
