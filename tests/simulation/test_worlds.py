"""Groups, transactions and clusters keep their promises whatever happens (see the modules `world`)."""

import pytest

from tests.simulation.worlds import WORLDS

_SEEDS = {"groups": (1000, 300, 100), "transactions": (1000, 300, 100), "cluster": (150, 5, 5)}
"""Seeds, those in `make test`, and those of one test. `make simulation` plays more."""
_CASES = [
    pytest.param(world, range(first, first + batch), id=f"{world} {first}", marks=[pytest.mark.slow][: first >= gate])
    for world, (seeds, gate, batch) in _SEEDS.items()
    for first in range(0, seeds, batch)
]


@pytest.mark.parametrize(("world", "seeds"), _CASES)
def test_promises_are_kept(world: str, seeds: range) -> None:
    for seed in seeds:
        failure = WORLDS[world].failure(WORLDS[world].history_of(seed))
        if failure is not None:
            pytest.fail(failure, pytrace=False)


@pytest.mark.parametrize("world", WORLDS)
def test_a_seed_replays_exactly(world: str) -> None:
    history_of, play, _ = WORLDS[world]
    first: list[str] = []
    second: list[str] = []
    assert play(history_of(7), first) is None
    assert play(history_of(7), second) is None
    assert first
    assert first == second
