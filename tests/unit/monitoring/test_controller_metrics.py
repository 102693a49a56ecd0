"""The figures of the controller of a cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.cluster.offices.event_queue import Timing
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


async def test_elections_and_moved_leaders_are_counted_until_after_the_term(world: OfficeWorld) -> None:
    assert not any(figures(world).values())
    await world.stand()
    await world.create_topic("t", (2, 3))
    before = figures(world)
    await world.tree.delete("/brokers/ids/2")
    await world.rest()
    after = figures(world)
    elections = "kafka_controller_controllerstats_leaderelectionrateandtimems_count"
    assert after[elections] == before[elections] + 1
    assert after["kafka_controller_kafkacontroller_preferredreplicaimbalancecount"] == 1
    await world.candidate.close()
    later = figures(world)
    assert later[elections] == after[elections]
    assert later["headrace_controller_events"] > 0


def quantiles(world: OfficeWorld, name: str) -> dict[str, float]:
    (family,) = (family for family in controller(world.candidate) if family.name == name)
    assert not callable(family.samples)
    return {labels["quantile"]: value for labels, value in family.samples}


async def test_times_have_quantiles_in_milliseconds(world: OfficeWorld) -> None:
    elections = "kafka_controller_controllerstats_leaderelectionrateandtimems"
    assert set(quantiles(world, elections)) == {"0.50", "0.75", "0.95", "0.98", "0.99", "0.999"}
    for seconds in (0.001, 0.002, 0.003):
        world.candidate.figures.handled.setdefault("brokers", Timing()).add(seconds)
    assert quantiles(world, elections)["0.50"] == pytest.approx(2)
    assert quantiles(world, elections)["0.999"] == pytest.approx(3)
    queue = "kafka_controller_controllereventmanager_eventqueuetimems"
    world.candidate.figures.waited.add(0.25)
    assert quantiles(world, queue)["0.99"] == pytest.approx(250)
    assert figures(world)[f"{queue}_count"] == 1


async def test_unfinished_deletions_are_counted(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (2, 3))
    await world.tree.delete("/brokers/ids/3")
    await world.tree.create("/admin/delete_topics/t")
    await world.rest()
    assert figures(world)["kafka_controller_kafkacontroller_topicstodeletecount"] == 1
