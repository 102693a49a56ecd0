"""The embedded store's file, threads and failures. The contract of all stores is in tests/contracts."""

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.cluster.store import Create, StoreLockedError, StoreUnavailableError
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.stores.metadata_file import founded_cluster, read_tree

_PREVIOUS_LAYOUT = """
CREATE TABLE node (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX child ON node (parent);
INSERT INTO node VALUES ('/', '', x'', 0, 0), ('/cluster', '/', x'', 0, 0),
    ('/cluster/id', '/cluster', CAST('{"version":"1","id":"abc"}' AS BLOB), 3, 0), ('/me', '/', x'', 0, 1);
"""


@pytest.fixture
def previous(tmp_path: Path) -> Iterator[Path]:
    """A file of the version before zxids, left by a killed broker."""
    path = tmp_path / "previous.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(_PREVIOUS_LAYOUT)
        yield path


async def test_the_nodes_of_a_previous_version_are_older_than_every_transaction(previous: Path) -> None:
    store = EmbeddedStore(previous, durable=False)
    node = await store.get("/cluster/id")
    assert (node.data, node.stat.version) == (b'{"version":"1","id":"abc"}', 3)
    assert await store.children("/") == ["cluster"]
    assert node.stat.mzxid < (await store.set("/cluster", b"")).mzxid
    await store.close()


async def test_a_file_is_upgraded_once(previous: Path) -> None:
    store = EmbeddedStore(previous, durable=False)
    before = await store.set("/cluster", b"1")
    await store.close()
    store = EmbeddedStore(previous, durable=False)
    assert await store.exists("/cluster") == before
    await store.close()


def test_a_file_of_the_previous_version_can_be_read_offline(previous: Path) -> None:
    assert founded_cluster(previous) == "abc"
    assert set(read_tree(previous)) == {"/cluster", "/cluster/id"}


async def test_a_file_of_a_newer_version_is_refused_and_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    await EmbeddedStore(path, durable=False).close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(StoreUnavailableError, match="newer version"):
        EmbeddedStore(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (9,)


async def test_ephemeral_nodes_of_a_killed_process_are_removed_at_the_next_start(tmp_path: Path) -> None:
    killed = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    await killed.create("/a", ephemeral=True)
    second = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    assert await second.children("/") == []
    await second.close()
    await killed.close()


async def test_writes_in_other_threads_are_serialized(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as executor:
        store = EmbeddedStore(tmp_path / "metadata.db", executor=executor, durable=False)
        await store.create("/a")
        await asyncio.gather(*(store.set("/a", str(number).encode()) for number in range(20)))
        assert (await store.get("/a")).stat.version == 20
        await store.close()


async def test_only_the_owner_can_access_the_file(store: EmbeddedStore, tmp_path: Path) -> None:
    assert (tmp_path / "metadata.db").stat().st_mode & 0o077 == 0


def test_a_file_that_is_not_a_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"not a store " * 1000)
    with pytest.raises(StoreUnavailableError, match=r"metadata\.db: .*not available"):
        EmbeddedStore(tmp_path / "metadata.db")


async def test_sqlite_errors_become_store_errors(store: EmbeddedStore) -> None:
    error = sqlite3.OperationalError("bad")

    class Failing:
        def execute(self, *_: object) -> None:
            raise error

    database = store._database
    store._database = cast("sqlite3.Connection", Failing())
    calls: tuple[Callable[[], Coroutine[Any, Any, object]], ...] = (
        lambda: store.get("/"),
        lambda: store.get_many(["/"]),
        lambda: store.exists("/"),
        lambda: store.children("/"),
        lambda: store.create("/a"),
        lambda: store.set("/", b""),
        lambda: store.delete("/a"),
        lambda: store.multi([]),
    )
    errors: dict[int, tuple[type[StoreUnavailableError], str]] = {
        sqlite3.SQLITE_READONLY: (StoreUnavailableError, "read-only"),
        sqlite3.SQLITE_IOERR_WRITE: (StoreUnavailableError, "the disk failed"),
        sqlite3.SQLITE_FULL: (StoreUnavailableError, "make room"),
        sqlite3.SQLITE_CORRUPT: (StoreUnavailableError, "restore it from a backup"),
        sqlite3.SQLITE_MISUSE: (StoreUnavailableError, "bad"),
        # last, because calls after a lock begin with another statement
        sqlite3.SQLITE_BUSY: (StoreLockedError, "locked by another process"),
        sqlite3.SQLITE_BUSY_SNAPSHOT: (StoreLockedError, "locked by another process"),
    }
    for error.sqlite_errorcode, (kind, message) in errors.items():
        for call in calls:
            with pytest.raises(kind, match=message):
                await call()
    store._database = database


async def test_a_full_store_refuses_all_batches(store: EmbeddedStore) -> None:
    store._database.execute("PRAGMA max_page_count = 16")
    results = await store.multi_many([[Create("/a")], [Create("/b", bytes(100_000))], [Create("/c")]])
    assert [type(result) for result in results] == [StoreUnavailableError] * 3
    assert await store.children("/") == []


async def test_a_failed_write_changes_nothing(store: EmbeddedStore) -> None:
    await store.create("/a")
    before = await store.get("/a")
    store._database.execute("PRAGMA max_page_count = 16")
    with pytest.raises(StoreUnavailableError, match="full"):
        await store.set("/a", bytes(100_000))
    assert await store.get("/a") == before
