"""What every metadata store must do."""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from headrace.cluster.store import (
    CHANGED,
    CHILDREN,
    CREATED,
    DELETED,
    BadVersionError,
    Create,
    Delete,
    Event,
    MetadataStore,
    Node,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Set,
    StoreLockedError,
    StoreUnavailableError,
)
from headrace.cluster.stores.embedded import EmbeddedStore


async def test_a_node_holds_what_it_was_created_with(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    assert await store.get("/a") == Node(b"1", 0)


async def test_a_node_needs_its_parent(store: MetadataStore) -> None:
    with pytest.raises(NoNodeError, match="/a"):
        await store.create("/a/b")


async def test_a_node_is_created_once(store: MetadataStore) -> None:
    await store.create("/a")
    with pytest.raises(NodeExistsError, match="/a"):
        await store.create("/a")


async def test_what_is_not_there_is_said_so(store: MetadataStore) -> None:
    assert await store.exists("/a") is None
    for call in (store.get("/a"), store.children("/a"), store.set("/a", b""), store.delete("/a")):
        with pytest.raises(NoNodeError):
            await call


async def test_every_set_makes_a_new_version(store: MetadataStore) -> None:
    await store.create("/a")
    assert await store.set("/a", b"1") == 1
    assert await store.set("/a", b"2", 1) == 2
    assert await store.exists("/a") == 2


async def test_a_set_or_delete_of_another_version_is_refused(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    with pytest.raises(BadVersionError):
        await store.set("/a", b"2", 1)
    with pytest.raises(BadVersionError):
        await store.delete("/a", 1)
    assert await store.get("/a") == Node(b"1", 0)


async def test_children_come_sorted_and_without_grandchildren(store: MetadataStore) -> None:
    for path in ("/b", "/a", "/a/x", "/ab"):
        await store.create(path)
    assert await store.children("/") == ["a", "ab", "b"]
    assert await store.children("/a") == ["x"]


async def test_a_node_with_children_stays(store: MetadataStore) -> None:
    await store.create("/a")
    await store.create("/a/b")
    with pytest.raises(NotEmptyError):
        await store.delete("/a")


async def test_many_nodes_are_read_at_once(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    assert await store.get_many(["/a", "/b"]) == [Node(b"1", 0), None]


async def test_of_many_operations_all_happen_or_none(store: MetadataStore) -> None:
    await store.create("/a")
    with pytest.raises(BadVersionError):
        await store.multi([Create("/b"), Set("/a", b"1"), Delete("/a", 7)])
    assert await store.children("/") == ["a"]
    assert await store.get("/a") == Node(b"", 0)
    await store.multi([Create("/b"), Create("/b/c"), Set("/a", b"1"), Delete("/b/c"), Delete("/b", 0)])
    assert await store.children("/") == ["a"]


async def test_a_watcher_hears_of_one_change(store: MetadataStore) -> None:
    heard: list[Event] = []
    await store.exists("/a", heard.append)
    await store.create("/a")
    await store.set("/a", b"1")
    assert heard == [Event(CREATED, "/a")]
    await store.get("/a", heard.append)
    await store.set("/a", b"2")
    await store.get("/a", heard.append)
    await store.delete("/a")
    assert heard[1:] == [Event(CHANGED, "/a"), Event(DELETED, "/a")]


async def test_a_watcher_of_children_hears_of_comings_and_goings_but_not_of_changes(store: MetadataStore) -> None:
    heard: list[Event] = []
    await store.create("/a")
    await store.children("/a", heard.append)
    await store.set("/a", b"1")
    assert not heard
    await store.create("/a/b")
    assert heard == [Event(CHILDREN, "/a")]
    await store.children("/a", heard.append)
    await store.set("/a/b", b"1")
    await store.delete("/a/b")
    assert heard == [Event(CHILDREN, "/a")] * 2


async def test_a_watcher_sees_the_change_it_hears_of(store: MetadataStore) -> None:
    seen: list[asyncio.Task[Node]] = []
    await store.create("/a")
    await store.get("/a", lambda event: seen.append(asyncio.ensure_future(store.get(event.path))))
    await store.multi([Set("/a", b"1"), Create("/b")])
    assert (await seen[0]).data == b"1"


async def test_a_failed_change_wakes_nobody(store: MetadataStore) -> None:
    heard: list[Event] = []
    await store.create("/a")
    await store.get("/a", heard.append)
    with pytest.raises(NodeExistsError):
        await store.multi([Set("/a", b"1"), Create("/a")])
    assert not heard


async def test_nodes_survive_and_ephemeral_ones_go_with_the_process(tmp_path: Path) -> None:
    first = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    await first.multi([Create("/a", b"1"), Create("/a/me", b"", ephemeral=True)])
    await first.set("/a", b"2")
    await first.close()
    killed = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    await killed.create("/a/it", ephemeral=True)
    second = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    assert await second.get("/a") == Node(b"2", 1)
    assert await second.children("/a") == []
    await second.close()
    await killed.close()


async def test_writes_in_another_thread_come_one_after_the_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as executor:
        store = EmbeddedStore(tmp_path / "metadata.db", executor=executor, durable=False)
        await store.create("/a")
        await asyncio.gather(*(store.set("/a", str(number).encode()) for number in range(20)))
        assert (await store.get("/a")).version == 20
        await store.close()


async def test_the_file_is_for_its_owner_only(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    assert (tmp_path / "metadata.db").stat().st_mode & 0o077 == 0
    await store.close()


def test_a_file_that_is_no_store_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "metadata.db").write_bytes(b"no database " * 1000)
    with pytest.raises(StoreUnavailableError, match=r"metadata\.db: .*not available"):
        EmbeddedStore(tmp_path / "metadata.db")


@pytest.mark.parametrize(
    ("code", "kind", "told"),
    [
        (sqlite3.SQLITE_BUSY, StoreLockedError, "locked by another process"),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreLockedError, "locked by another process"),
        (sqlite3.SQLITE_READONLY, StoreUnavailableError, "read-only"),
        (sqlite3.SQLITE_IOERR_WRITE, StoreUnavailableError, "the disk fails"),
        (sqlite3.SQLITE_FULL, StoreUnavailableError, "free space"),
        (sqlite3.SQLITE_CORRUPT, StoreUnavailableError, "restore it from a backup"),
        (sqlite3.SQLITE_MISUSE, StoreUnavailableError, "bad"),
    ],
)
async def test_whatever_sqlite_fails_with_is_a_failure_of_the_store(
    tmp_path: Path, code: int, kind: type[StoreUnavailableError], told: str
) -> None:
    error = sqlite3.OperationalError("bad")
    error.sqlite_errorcode = code

    class Failing:
        def execute(self, *_: object) -> None:
            raise error

    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    database = store._database
    store._database = cast("sqlite3.Connection", Failing())
    calls = (
        lambda: store.get("/"),
        lambda: store.get_many(["/"]),
        lambda: store.exists("/"),
        lambda: store.children("/"),
        lambda: store.create("/a"),
        lambda: store.set("/", b""),
        lambda: store.delete("/a"),
    )
    for call in calls:
        with pytest.raises(kind, match=told):
            await call()
    store._database = database
    await store.close()


async def test_a_write_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    await store.create("/a")
    store._database.execute("PRAGMA max_page_count = 8")
    with pytest.raises(StoreUnavailableError, match="full"):
        await store.set("/a", bytes(100_000))
    assert await store.get("/a") == Node(b"", 0)
    await store.close()
