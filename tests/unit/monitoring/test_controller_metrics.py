"""The figures of the controller of a cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.monitoring.controller import controller
from tests.unit.cluster.membership.watched_store import WatchedMemory
from tests.unit.cluster.offices.office_world import OfficeWorld, office


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OfficeWorld]:
    tree = WatchedMemory(tmp_path / "tree.db")
    world = await office(tree, monkeypatch)
    yield world
    await world.candidate.close()
    await tree.close()


def figures(world: OfficeWorld) -> dict[str, float]:
    """Return the values of all metrics, those with labels added up."""
    found = {}
    for family in controller(world.candidate):
        samples = family.samples() if callable(family.samples) else family.samples
        found[family.name] = sum(value for _, value in samples)
    return found


async def test_a_broker_without_office_exports_zeros(world: OfficeWorld) -> None:
    assert not any(figures(world).values())


async def test_elections_and_moved_leaders_are_counted(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (2, 3))
    before = figures(world)
    await world.tree.delete("/brokers/ids/2")
    await world.rest()
    after = figures(world)
    elections = "kafka_controller_controllerstats_leaderelectionrateandtimems_count"
    assert after[elections] == before[elections] + 1
    assert after["kafka_controller_kafkacontroller_preferredreplicaimbalancecount"] == 1


async def test_figures_survive_the_end_of_a_term(world: OfficeWorld) -> None:
    await world.stand()
    await world.candidate.close()
    assert figures(world)["headrace_controller_events"] > 0


async def test_unfinished_deletions_are_counted(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (2, 3))
    await world.tree.delete("/brokers/ids/3")
    await world.tree.create("/admin/delete_topics/t")
    await world.rest()
    assert figures(world)["kafka_controller_kafkacontroller_topicstodeletecount"] == 1
