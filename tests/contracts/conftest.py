"""The stores under test. All tests share one ZooKeeper server, with one tree per test."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from headrace.cluster.store import MetadataStore
from headrace.cluster.stores.embedded import EmbeddedStore
from tests.adoption.kafka import ZooKeeper
from tests.support.zookeeper_store import ZooKeeperStore

OpenStore: TypeAlias = Callable[[], Awaitable[MetadataStore]]
"""Opens a session on the test's tree, one at a time: only one process may open the embedded store."""

_numbers: Final = itertools.count()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running.address


@pytest.fixture(params=["embedded", pytest.param("zookeeper", marks=pytest.mark.java)])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    async with AsyncExitStack() as opened:
        if request.param == "embedded":

            async def open_embedded() -> MetadataStore:
                store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
                opened.push_async_callback(store.close)
                return store

            yield open_embedded
            return
        address: str = request.getfixturevalue("zookeeper")
        root = f"/contract-{next(_numbers)}"
        above = await _connected(address, opened)
        await above.create(root)

        async def open_zookeeper() -> MetadataStore:
            return await _connected(address + root, opened)

        yield open_zookeeper


async def _connected(address: str, opened: AsyncExitStack) -> ZooKeeperStore:
    store = ZooKeeperStore(address)
    await store.start()
    opened.push_async_callback(store.close)
    return store


@pytest.fixture
async def store(open_store: OpenStore) -> MetadataStore:
    return await open_store()
