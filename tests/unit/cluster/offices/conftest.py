from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.cluster.membership.watched_store import WatchedMemory
from tests.unit.cluster.offices.office_world import OfficeWorld, office


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OfficeWorld]:
    tree = WatchedMemory(tmp_path / "tree.db")
    world = await office(tree, monkeypatch)
    yield world
    await world.candidate.close()
    await tree.close()
