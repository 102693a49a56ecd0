"""Sessions and watches of the ZooKeeper store, which the embedded one does not have."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from headrace.cluster.store import StoreUnavailableError
from headrace.cluster.stores.read_many import ReadMany
from headrace.cluster.stores.zookeeper import SessionChange, ZooKeeperStore
from tests.contracts.conftest import connected, new_root
from tests.support.ports import free_port
from tests.support.proxy import NO_FAULTS, ZOOKEEPER, Faults, Proxy

pytestmark = pytest.mark.java

SHORT_TIMEOUT_MS = 2000
"""The shortest that the server accepts."""


@pytest.fixture
async def other(zookeeper: str) -> AsyncIterator[ZooKeeperStore]:
    """Another client of the tree at `other.address`."""
    store = await connected(zookeeper + await new_root(zookeeper))
    yield store
    await store.close()


@pytest.fixture
def proxy(zookeeper: str) -> Iterator[Proxy]:
    with Proxy(zookeeper, protocol=ZOOKEEPER) as proxy:
        yield proxy


@pytest.fixture
async def store(other: ZooKeeperStore, proxy: Proxy) -> AsyncIterator[ZooKeeperStore]:
    """A client of the same tree, through the proxy, with a short session timeout."""
    address = proxy.address + "/" + other.address.partition("/")[2]
    loop = asyncio.get_running_loop()
    store = ZooKeeperStore(address, session_timeout_ms=SHORT_TIMEOUT_MS, loop=loop)
    await store.connect(30)
    yield store
    proxy.faults = NO_FAULTS
    await store.close()


class Changes:
    """Notes the changes of a session."""

    def __init__(self, store: ZooKeeperStore) -> None:
        self.seen: list[SessionChange] = []
        self._news = asyncio.Event()
        store.on_change = self._note

    def _note(self, change: SessionChange) -> None:
        self.seen.append(change)
        self._news.set()

    async def until(self, change: SessionChange) -> None:
        async with asyncio.timeout(30):
            while change not in self.seen:
                self._news.clear()
                await self._news.wait()


async def test_a_watch_is_called_when_the_node_is_written(store: ZooKeeperStore, other: ZooKeeperStore) -> None:
    await other.create("/a", b"1")
    changed = asyncio.Event()
    found = await store.watched("/a", changed.set)
    assert found is not None
    assert found.data == b"1"
    await other.set("/a", b"2")
    await asyncio.wait_for(changed.wait(), 20)


async def test_a_watch_is_called_when_a_missing_node_is_created(store: ZooKeeperStore, other: ZooKeeperStore) -> None:
    changed = asyncio.Event()
    assert await store.watched("/a", changed.set) is None
    await other.create("/a")
    await asyncio.wait_for(changed.wait(), 20)


async def test_a_watch_is_called_when_the_node_is_deleted(store: ZooKeeperStore, other: ZooKeeperStore) -> None:
    await other.create("/a")
    changed = asyncio.Event()
    await store.watched("/a", changed.set)
    await other.delete("/a")
    await asyncio.wait_for(changed.wait(), 20)


async def test_a_watch_of_children_is_called_for_a_new_one(store: ZooKeeperStore, other: ZooKeeperStore) -> None:
    await other.create("/a")
    await other.create("/a/1")
    changed = asyncio.Event()
    assert await store.watched_children("/a", changed.set) == ["1"]
    await other.create("/a/2")
    await asyncio.wait_for(changed.wait(), 20)


async def test_a_cut_connection_keeps_the_session(store: ZooKeeperStore, proxy: Proxy) -> None:
    changes = Changes(store)
    session = store.session
    await store.create("/a", ephemeral=True)
    proxy.cut()
    await changes.until(SessionChange.CONNECTED)
    assert changes.seen == [SessionChange.SUSPENDED, SessionChange.CONNECTED]
    assert store.session == session
    stat = await store.exists("/a")
    assert stat is not None
    assert stat.owner == session


async def test_a_call_waits_for_the_next_connection(store: ZooKeeperStore, proxy: Proxy) -> None:
    proxy.cut()
    await store.create("/a", b"1")
    assert (await store.get("/a")).data == b"1"


async def test_after_silence_there_is_a_new_session(store: ZooKeeperStore, proxy: Proxy, other: ZooKeeperStore) -> None:
    changes = Changes(store)
    session = store.session
    await store.create("/a", ephemeral=True)
    proxy.faults = Faults(silence=1.0)
    async with asyncio.timeout(30):
        while await other.exists("/a") is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    proxy.faults = NO_FAULTS
    proxy.cut()
    await changes.until(SessionChange.LOST)
    changes.seen.clear()
    await changes.until(SessionChange.CONNECTED)
    assert store.session not in (0, session)
    await store.create("/a", ephemeral=True)
    stat = await other.exists("/a")
    assert stat is not None
    assert stat.owner == store.session


async def test_a_waiting_call_ends_when_the_store_is_closed(store: ZooKeeperStore, proxy: Proxy) -> None:
    proxy.faults = Faults(silence=1.0)
    waiting = asyncio.ensure_future(store.get("/"))
    await asyncio.sleep(0.1)
    closing = asyncio.ensure_future(store.close())
    with pytest.raises(StoreUnavailableError):
        await asyncio.wait_for(waiting, 5)
    proxy.faults = NO_FAULTS
    proxy.cut()
    await closing


async def test_a_server_that_cannot_be_reached_is_reported() -> None:
    loop = asyncio.get_running_loop()
    store = ZooKeeperStore(f"127.0.0.1:{free_port()}", session_timeout_ms=SHORT_TIMEOUT_MS, loop=loop)
    with pytest.raises(StoreUnavailableError, match=r"did not answer within 0\.5 s"):
        await store.connect(0.5)


async def test_a_path_that_does_not_exist_is_created(zookeeper: str) -> None:
    loop = asyncio.get_running_loop()
    store = ZooKeeperStore(f"{zookeeper}/nowhere/yet", session_timeout_ms=SHORT_TIMEOUT_MS, loop=loop)
    try:
        await store.connect(30)
        assert await store.exists("/") is not None
    finally:
        await store.close()


async def test_nodes_are_read_one_by_one_from_a_server_that_cannot_read_many(
    other: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ReadMany, "type", 99)  # unknown to the server, which closes the connection
    await other.create("/a", b"1")
    session = other.session
    for _ in range(2):
        nodes = await other.get_many(["/a", "/b"] * 20)
        assert [node and node.data for node in nodes] == [b"1", None] * 20
    assert other.session == session
