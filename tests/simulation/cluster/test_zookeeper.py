"""The fake ZooKeeper executes transactions as the embedded store does, which passes the same contract as ZooKeeper."""

import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from headrace.cluster.store import Check, Create, Delete, Done, Node, Operation, Set, StoreError
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.stores.zookeeper import ZooKeeperStore
from tests.simulation.cluster.loop import Process, ProcessLoop
from tests.simulation.cluster.net import Network
from tests.simulation.cluster.zookeeper import Ensemble

_PATHS = ("/a", "/b", "/a/c", "/a/d", "/b/e")
_TRANSACTIONS = 150


def _operation(chance: random.Random) -> Operation:
    path = chance.choice(_PATHS)
    version = chance.choice((-1, -1, 0, 1, 2))
    kinds: tuple[Callable[[], Operation], ...] = (
        lambda: Create(path, b"%d" % chance.randrange(100), ephemeral=chance.random() < 0.2),
        lambda: Create(path + "-", b"", sequential=True),
        lambda: Set(path, b"%d" % chance.randrange(100), version),
        lambda: Delete(path, version),
        lambda: Check(path, max(0, version)),
    )
    return chance.choices(kinds, (4, 1, 3, 2, 1))[0]()


async def _outcome(store: EmbeddedStore | ZooKeeperStore, operations: list[Operation]) -> object:
    try:
        return [(done.path, None if done.stat is None else done.stat.version) for done in await store.multi(operations)]
    except StoreError as error:
        return type(error)


async def _tree(store: EmbeddedStore | ZooKeeperStore, path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in await store.children(path or "/"):
        child = f"{path}/{name}"
        node: Node = await store.get(child)
        found |= {child: (node.data, node.stat.version, node.stat.owner != 0)}
        found |= await _tree(store, child)
    return found


def _run(work: Callable[[ZooKeeperStore], Coroutine[Any, Any, None]], break_rate: float) -> None:
    """Run the work with a session on a fake ZooKeeper, in virtual time."""
    loop = ProcessLoop(random.Random(1))
    network = Network(loop, random.Random(2))
    ensemble = Ensemble(loop, network, random.Random(3))

    async def with_session() -> None:
        store = ZooKeeperStore("zk:2181", session_timeout_ms=6000, loop=loop)
        await store.connect(60.0)
        network.break_rate = break_rate
        await work(store)

    with patch("headrace.cluster.stores.zookeeper.KazooClient", ensemble.client):
        try:
            loop.run_until_complete(loop.spawn(Process("client"), with_session))
        finally:
            loop.end()


@pytest.mark.parametrize("seed", range(5))
def test_transactions_have_the_same_results_and_errors(seed: int, tmp_path: Path) -> None:
    async def compare(store: ZooKeeperStore) -> None:
        embedded, chance = EmbeddedStore(tmp_path / "tree.db", durable=False), random.Random(seed)
        for _ in range(_TRANSACTIONS):
            operations = [_operation(chance) for _ in range(chance.choice((1, 1, 2, 3)))]
            assert await _outcome(store, operations) == await _outcome(embedded, operations), operations
        assert await _tree(store) == await _tree(embedded)
        await embedded.close()

    _run(compare, 0.0)


@pytest.mark.parametrize("seed", range(5))
def test_lost_answers_apply_no_write_twice(seed: int, tmp_path: Path) -> None:
    async def compare(store: ZooKeeperStore) -> None:
        embedded, chance = EmbeddedStore(tmp_path / "tree.db", durable=False), random.Random(seed)
        for _ in range(_TRANSACTIONS):
            operations = [_operation(chance)]
            await _outcome(store, operations)
            await _outcome(embedded, operations)
        assert await _tree(store) == await _tree(embedded)
        await embedded.close()

    _run(compare, 0.05)


def test_an_expired_session_loses_its_nodes() -> None:
    async def expire(store: ZooKeeperStore) -> None:
        (done,) = await store.multi([Create("/a", ephemeral=True)])
        assert done == Done("/a")
        session = store.session
        store._client._ensemble.expire(store._client._ensemble.sessions[session])
        while store.session == session:
            await store.exists("/")
        assert await store.exists("/a") is None

    _run(expire, 0.0)
