from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.cluster import znodes
from headrace.cluster.loading import missing_nodes
from headrace.cluster.store import Create
from tests.unit.cluster.membership.watched_store import WatchedMemory


@pytest.fixture
async def tree(tmp_path: Path) -> AsyncIterator[WatchedMemory]:
    """The tree of a cluster without brokers and topics."""
    store = WatchedMemory(tmp_path / "tree.db")
    await store.multi([*await missing_nodes(store), Create(znodes.CLUSTER_ID, znodes.encode_cluster_id("c"))])
    yield store
    await store.close()


@pytest.fixture
async def tree_without_nodes(tmp_path: Path) -> AsyncIterator[WatchedMemory]:
    """An empty tree."""
    store = WatchedMemory(tmp_path / "empty.db")
    yield store
    await store.close()
