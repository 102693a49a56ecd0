"""The stores under test. All tests share one ZooKeeper server, with one tree per test."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from headrace.cluster.store import MetadataStore
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.stores.zookeeper import ZooKeeperStore
from tests.adoption.kafka import ZooKeeper
from tests.support.proxy import ZOOKEEPER, ZOOKEEPER_WRITES, Faults, Proxy

OpenStore: TypeAlias = Callable[[], Awaitable[MetadataStore]]
"""Opens a session on the test's tree, one at a time: only one process may open the embedded store."""

SESSION_TIMEOUT_MS: Final = 6000
_START_TIMEOUT_S: Final = 60.0
"""A server that has just started may need seconds on a busy machine."""
_FAULTS: Final = {
    "lost answers": Faults(lose_answer=0.4, apis=ZOOKEEPER_WRITES),
    "torn requests": Faults(tear=0.1),
}
_numbers: Final = itertools.count()


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running.address


async def new_root(address: str) -> str:
    """Create an empty tree, and return its path."""
    path = f"/contract-{next(_numbers)}"
    above = await connected(address)
    await above.create(path)
    await above.close()
    return path


_STORES: Final = [
    "embedded",
    pytest.param("zookeeper", marks=pytest.mark.java),
    pytest.param("zookeeper with lost answers", marks=pytest.mark.java),
    pytest.param("zookeeper with torn requests", marks=[pytest.mark.java, pytest.mark.slow]),
]


@pytest.fixture(params=_STORES)
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    if request.param == "embedded":
        async with AsyncExitStack() as opened:

            async def open_embedded() -> MetadataStore:
                store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
                opened.push_async_callback(store.close)
                return store

            yield open_embedded
        return
    address: str = request.getfixturevalue("zookeeper")
    root = await new_root(address)
    with ExitStack() as proxied:
        _, _, fault = request.param.partition(" with ")
        proxy = None
        if fault:
            proxy = proxied.enter_context(Proxy(address, protocol=ZOOKEEPER, seed=next(_numbers)))
            address = proxy.address
        async with AsyncExitStack() as opened:

            async def open_zookeeper() -> MetadataStore:
                store = await connected(address + root)
                opened.push_async_callback(store.close)
                if proxy is not None:
                    proxy.faults = _FAULTS[fault]
                return store

            yield open_zookeeper


async def connected(address: str) -> ZooKeeperStore:
    store = ZooKeeperStore(address, session_timeout_ms=SESSION_TIMEOUT_MS, loop=asyncio.get_running_loop())
    await store.connect(_START_TIMEOUT_S)
    return store


@pytest.fixture
async def store(open_store: OpenStore) -> MetadataStore:
    return await open_store()
