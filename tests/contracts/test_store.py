"""The contract of the metadata store port: every case runs on every store."""

import asyncio
import time
from contextlib import suppress

import pytest

from headrace.cluster.store import (
    ANY_VERSION,
    BadVersionError,
    Check,
    Create,
    Delete,
    Done,
    MetadataStore,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Set,
    Stat,
    StoreError,
)
from tests.contracts.conftest import OpenStore


async def stat_of(store: MetadataStore, path: str) -> Stat:
    return (await store.get(path)).stat


async def refusal_of(store: MetadataStore, *operations: Operation) -> type[Exception]:
    with pytest.raises(StoreError) as caught:
        await store.multi(operations)
    return caught.type


# Nodes


async def test_a_node_holds_any_bytes(store: MetadataStore) -> None:
    data = bytes(range(256)) * 1000
    assert await store.create("/a", data) == "/a"
    assert (await store.get("/a")).data == data
    await store.create("/empty")
    assert (await store.get("/empty")).data == b""


async def test_a_path_may_contain_any_script(store: MetadataStore) -> None:
    await store.create("/größe %3A")
    assert await store.children("/") == ["größe %3A"]


async def test_a_node_needs_its_parent(store: MetadataStore) -> None:
    with pytest.raises(NoNodeError, match="/a"):
        await store.create("/a/b")
    with pytest.raises(NoNodeError):
        await store.create("/a/b_", sequential=True)


async def test_a_node_is_created_once(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    with pytest.raises(NodeExistsError, match="/a"):
        await store.create("/a", b"2")
    assert (await store.get("/a")).data == b"1"


async def test_a_call_for_a_missing_node_names_it(store: MetadataStore) -> None:
    assert await store.exists("/a") is None
    for call in (store.get("/a"), store.children("/a"), store.set("/a", b"")):
        with pytest.raises(NoNodeError, match="/a"):
            await call


async def test_a_delete_of_a_missing_node_names_it(store: MetadataStore, request: pytest.FixtureRequest) -> None:
    if "lost answers" in request.node.name or "torn requests" in request.node.name:
        # After a lost answer (or request) the node is read, and a missing one means that the delete has succeeded.
        with suppress(NoNodeError):
            await store.delete("/a")
        assert await store.exists("/a") is None
        return
    with pytest.raises(NoNodeError, match="/a"):
        await store.delete("/a")


async def test_every_call_returns_the_same_stat(store: MetadataStore) -> None:
    await store.create("/a")
    stat = await store.set("/a", b"1")
    node = await store.get("/a")
    assert node.stat == stat == await store.exists("/a")
    assert await store.get_many(["/a"]) == [node]


async def test_children_are_sorted_and_exclude_grandchildren(store: MetadataStore) -> None:
    for path in ("/b", "/a", "/a/x", "/ab"):
        await store.create(path)
    assert await store.children("/") == ["a", "ab", "b"]
    assert await store.children("/a") == ["x"]
    assert await store.children("/b") == []


async def test_a_node_with_children_is_not_deleted(store: MetadataStore) -> None:
    await store.create("/a")
    await store.create("/a/b")
    with pytest.raises(NotEmptyError, match="/a"):
        await store.delete("/a")


async def test_many_nodes_are_returned_in_the_order_of_the_request(store: MetadataStore) -> None:
    await store.create("/a")
    await store.multi([Create(f"/a/{number}", b"%d" % number) for number in range(0, 200, 2)])
    wanted = [number % 200 for number in range(1100)]
    read = await store.get_many([f"/a/{number}" for number in wanted])
    assert [node and node.data for node in read] == [b"%d" % number if number % 2 == 0 else None for number in wanted]
    assert await store.get_many([]) == []


# Versions


async def test_every_set_increments_the_version(store: MetadataStore) -> None:
    await store.create("/a")
    versions = [(await stat_of(store, "/a")).version]
    versions += [(await store.set("/a", b"1")).version for _ in range(2)]
    versions += [(await store.set("/a", b"2", 2)).version]
    assert versions == [0, 1, 2, 3]


async def test_a_write_of_another_version_is_refused(store: MetadataStore) -> None:
    await store.create("/a", b"1")
    with pytest.raises(BadVersionError, match="/a"):
        await store.set("/a", b"2", 1)
    with pytest.raises(BadVersionError, match="/a"):
        await store.delete("/a", 1)
    assert (await store.get("/a")).data == b"1"


async def test_one_of_several_concurrent_sets_succeeds(store: MetadataStore) -> None:
    await store.create("/a")
    results = await asyncio.gather(*(store.set("/a", b"%d" % writer, 0) for writer in range(5)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == [*["BadVersionError"] * 4, "Stat"]


async def test_a_node_created_again_is_another_one(store: MetadataStore) -> None:
    await store.create("/a")
    before = await store.set("/a", b"1")
    await store.delete("/a")
    assert await store.exists("/a") is None
    await store.create("/a")
    stat = await stat_of(store, "/a")
    assert stat.version == 0
    assert stat.czxid > before.mzxid


# Zxids and times


async def test_zxids_rise_with_every_transaction(store: MetadataStore) -> None:
    await store.create("/a")
    await store.create("/b")
    stat = await stat_of(store, "/a")
    assert stat.czxid == stat.mzxid > 0
    zxids = [stat.czxid, (await stat_of(store, "/b")).czxid]
    zxids += [(await store.set("/a", b"1")).mzxid for _ in range(2)]
    assert sorted(set(zxids)) == zxids


async def test_a_set_keeps_the_zxid_and_time_of_the_creation(store: MetadataStore) -> None:
    began = time.time()
    await store.create("/a")
    before = await stat_of(store, "/a")
    # Clock values are truncated to milliseconds.
    assert began - 1 <= before.ctime_ms / 1000 <= time.time() + 1
    after = await store.set("/a", b"1")
    assert (after.czxid, after.ctime_ms) == (before.czxid, before.ctime_ms)


async def test_a_child_does_not_change_the_stat_of_its_parent(store: MetadataStore) -> None:
    await store.create("/a")
    before = await stat_of(store, "/a")
    await store.create("/a/b")
    assert await stat_of(store, "/a") == before


async def test_zxids_rise_across_sessions(open_store: OpenStore) -> None:
    first = await open_store()
    await first.create("/a")
    await first.create("/gone")
    before = await stat_of(first, "/gone")
    await first.delete("/gone")
    await first.close()
    second = await open_store()
    assert (await second.set("/a", b"1")).mzxid > before.czxid


# Sessions


async def test_only_an_ephemeral_node_has_an_owner(store: MetadataStore) -> None:
    await store.create("/a")
    await store.create("/me", ephemeral=True)
    assert (await stat_of(store, "/a")).owner == 0
    assert (await stat_of(store, "/me")).owner == store.session != 0


async def test_only_ephemeral_nodes_are_removed_with_the_session(open_store: OpenStore) -> None:
    first = await open_store()
    await first.multi([Create("/a", b"1"), Create("/a/me", ephemeral=True)])
    before, session = await first.get("/a"), first.session
    await first.close()
    second = await open_store()
    assert second.session != session
    async with asyncio.timeout(30):  # if the request to end the session was torn, it ends by its timeout
        while await second.children("/a"):  # noqa: ASYNC110  another session deletes it
            await asyncio.sleep(0.05)
    assert await second.get("/a") == before


async def test_an_ephemeral_node_has_no_children(store: MetadataStore) -> None:
    await store.create("/a", ephemeral=True)
    with pytest.raises(StoreError):
        await store.create("/a/b")


# Sequential nodes


async def test_a_sequential_nodes_name_ends_in_ten_digits(store: MetadataStore) -> None:
    path = await store.create("/a_", b"1", ephemeral=True, sequential=True)
    assert path[:-10] == "/a_"
    assert path[-10:].isdigit()
    node = await store.get(path)
    assert (node.data, node.stat.owner) == (b"1", store.session)


async def test_sequential_nodes_sort_in_the_order_of_creation(store: MetadataStore) -> None:
    paths = [await store.create("/a_", sequential=True) for _ in range(12)]
    assert sorted(set(paths)) == paths


async def test_a_sequential_nodes_number_is_not_used_twice(open_store: OpenStore) -> None:
    store = await open_store()
    first = await store.create("/a_", sequential=True)
    await store.delete(first)
    second = await store.create("/a_", sequential=True)
    assert second > first
    await store.close()
    assert await (await open_store()).create("/a_", sequential=True) > second


# Several operations


async def test_all_operations_are_applied(store: MetadataStore) -> None:
    await store.create("/a")
    await store.multi([Create("/b"), Create("/b/c"), Set("/a", b"1"), Delete("/b/c"), Delete("/b", 0)])
    assert await store.children("/") == ["a"]
    assert (await store.get("/a")).data == b"1"
    assert await store.multi([]) == []


async def test_no_operation_is_applied_if_one_is_refused(store: MetadataStore) -> None:
    await store.create("/a")
    before = await store.get("/a")
    assert await refusal_of(store, Create("/b"), Set("/a", b"1"), Delete("/a", 7)) is BadVersionError
    assert await store.children("/") == ["a"]
    assert await store.get("/a") == before


async def test_the_error_is_that_of_the_first_refused_operation(store: MetadataStore) -> None:
    with pytest.raises(NoNodeError, match="/b"):
        await store.multi([Create("/a"), Set("/b", b""), Create("/a")])


async def test_operations_share_one_zxid(store: MetadataStore) -> None:
    await store.create("/a")
    await store.multi([Create("/b"), Set("/a", b"1"), Create("/c")])
    zxids = {(await stat_of(store, path)).mzxid for path in ("/a", "/b", "/c")}
    assert len(zxids) == 1


async def test_operations_have_results_in_their_order(store: MetadataStore) -> None:
    await store.create("/a")
    await store.create("/b")
    done = await store.multi([Create("/c"), Set("/a", b"1"), Check("/a", 1), Delete("/b")])
    assert done == [Done("/c"), Done("/a", await stat_of(store, "/a")), Done("/a"), Done("/b")]
    results = await store.multi([Create("/c/_", sequential=True), Create("/c/_", sequential=True)])
    assert [result.path[3:] for result in results] == await store.children("/c")


async def test_a_node_created_and_set_together_has_version_1(store: MetadataStore) -> None:
    _, written = await store.multi([Create("/a", ephemeral=True), Set("/a", b"1")])
    assert written.stat is not None
    assert (written.stat.version, written.stat.czxid, written.stat.owner) == (1, written.stat.mzxid, store.session)


async def test_a_check_of_the_right_or_any_version_changes_nothing(store: MetadataStore) -> None:
    await store.create("/a")
    before = await store.set("/a", b"1")
    await store.multi([Check("/a", 1), Check("/a", ANY_VERSION), Create("/b")])
    assert await store.exists("/a") == before
    assert await store.exists("/b") is not None
    # It sees the operations before it.
    await store.multi([Set("/a", b"2"), Check("/a", 2)])
    assert (await store.get("/a")).data == b"2"


async def test_a_check_of_another_version_or_a_missing_node_refuses_all(store: MetadataStore) -> None:
    await store.create("/a")
    assert await refusal_of(store, Create("/b"), Check("/a", 1)) is BadVersionError
    assert await refusal_of(store, Create("/b"), Check("/missing", ANY_VERSION)) is NoNodeError
    assert await store.exists("/b") is None


# Batches


async def test_a_refused_batch_does_not_affect_others(store: MetadataStore) -> None:
    batches = [[Create("/a")], [Create("/b"), Create("/a")], [Create("/c"), Create("/c/d")]]
    first, refused, last = await store.multi_many(batches)
    assert isinstance(refused, NodeExistsError)
    assert (first, last) == ([Done("/a")], [Done("/c"), Done("/c/d")])
    assert await store.children("/") == ["a", "c"]
    assert (await stat_of(store, "/a")).czxid < (await stat_of(store, "/c")).czxid


async def test_batches_are_applied_in_order(store: MetadataStore) -> None:
    await store.multi_many([[Create("/a")], [Set("/a", b"1", 0)], [Set("/a", b"2", 1)]])
    assert (await store.get("/a")).data == b"2"
    assert await store.multi_many([]) == []


async def test_hundreds_of_batches_are_applied_together(store: MetadataStore) -> None:
    await store.create("/a")
    results = await store.multi_many([[Create(f"/a/{number:03}"), Check("/a", 0)] for number in range(200)])
    assert not [result for result in results if isinstance(result, StoreError)]
    assert len(await store.children("/a")) == 200


# Closed sessions


async def test_calls_fail_after_the_end_of_the_session(store: MetadataStore) -> None:
    await store.close()
    with pytest.raises(StoreError):
        await store.get("/")
    (result,) = await store.multi_many([[Create("/a")]])
    assert isinstance(result, StoreError)
