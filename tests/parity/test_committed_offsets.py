"""OffsetCommit, OffsetFetch and OffsetDelete."""

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from headrace.wire.apis import ApiKey
from tests.parity.both import Both, Names, Request, Side, every_version
from tests.parity.members import commit, join, joined, leave, member_of, sync


@pytest.fixture(scope="module")
def topic(session_both: Both) -> str:
    return session_both.create(f"committed-{uuid.uuid4().hex[:8]}", 3)


def fetch(groups: Sequence[str], topics: Sequence[tuple[str, list[int]]] | None, *, stable: bool = False) -> Request:
    def message(side: Side) -> dict[str, Any]:
        entries = None
        if topics is not None:
            entries = [
                {"name": topic, "topic_id": side.topic_id(topic), "partition_indexes": partitions}
                for topic, partitions in topics
            ]
        by_group = [{"group_id": group, "topics": entries} for group in groups]
        return {"group_id": groups[0], "topics": entries, "groups": by_group, "require_stable": stable}

    return message


@every_version(ApiKey.OFFSET_COMMIT)
def test_committing_without_a_group(version: int, both: Both, topic: str, name: Names) -> None:
    group = name()
    for case, request in (
        ("good and bad partitions", commit(group, topic, (0, 5, "m"), (1, 6, None), (9, 1, ""), (-1, 1, ""))),
        ("unknown topic", commit(group, "no-such-topic", (0, 1, ""))),
        ("no group", commit("", topic, (0, 1, ""))),
        ("long metadata", commit(group, topic, (0, 5, "x" * 4097), (1, 9, "y" * 4096))),
        ("negative offset", commit(group, topic, (2, -1, ""))),
        ("a generation of an unknown group", commit(name(), topic, (0, 1, ""), generation=5, member="m")),
        ("a generation of an empty group", commit(group, topic, (0, 1, ""), generation=5, member="m")),
        ("an unknown member", commit(group, topic, (0, 1, ""), member="m")),
        ("nothing", commit(group, topic)),
    ):
        both.ask(ApiKey.OFFSET_COMMIT, version, request, case=case)
    both.ask(ApiKey.OFFSET_FETCH, 8, fetch([group], None), case="at the end")


@every_version(ApiKey.OFFSET_COMMIT)
def test_committing_as_a_member(version: int, both: Both, topic: str, name: Names) -> None:
    group = name()
    member = member_of(both, joined(both, group))
    early = commit(group, topic, (0, 1, ""), member=member, generation=1)
    both.ask(ApiKey.OFFSET_COMMIT, version, early, case="before the assignment")
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, member, 1))
    for case, fields in (
        ("good", {"member": member, "generation": 1}),
        ("another generation", {"member": member, "generation": 9}),
        ("no generation", {"member": member}),
        ("unknown member", {"member": "stranger", "generation": 1}),
        ("no member", {}),
        ("instance", {"member": member, "generation": 1, "instance": "i"}),
    ):
        if "instance" not in fields or version >= 7:
            request = commit(group, topic, (0, 7, "note"), **fields)
            both.ask(ApiKey.OFFSET_COMMIT, version, request, case=case)
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (member, None)))
    late = commit(group, topic, (0, 1, ""), member=member, generation=1)
    both.ask(ApiKey.OFFSET_COMMIT, version, late, case="after leaving")


@every_version(ApiKey.OFFSET_COMMIT, since=7)
def test_committing_as_a_static_member(version: int, both: Both, topic: str, name: Names) -> None:
    group = name()
    old = member_of(both, joined(both, group, instance="i"))
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, old, 1, group_instance_id="i"))
    new = member_of(both, joined(both, group, instance="i"))
    for case, fields in (
        ("new member", {"member": new, "instance": "i"}),
        ("fenced member", {"member": old, "instance": "i"}),
        ("fenced member without its instance", {"member": old}),
        ("new member without its instance", {"member": new}),
        ("another instance", {"member": new, "instance": "j"}),
        ("unknown member", {"member": "stranger", "instance": "i"}),
        ("no member", {"instance": "i"}),
    ):
        for generation in (1, 0, 9, -1):
            request = commit(group, topic, (0, 7, ""), generation=generation, **fields)
            both.ask(ApiKey.OFFSET_COMMIT, version, request, case=f"{case}, generation {generation}")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, ("", "i")))


@every_version(ApiKey.OFFSET_FETCH)
def test_fetching(version: int, both: Both, topic: str, name: Names) -> None:
    one, two = name(), name()
    both.ask(ApiKey.OFFSET_COMMIT, 9, commit(one, topic, (0, 5, "m"), (2, 6, None)))
    both.ask(ApiKey.OFFSET_COMMIT, 9, commit(two, topic, (1, 8, "")))
    groups = [one, two, "no-such-group"]
    for case, request in (
        ("some", fetch(groups, [(topic, [0, 1, 2, 9])])),
        ("unknown topic", fetch(groups, [("no-such-topic", [0])])),
        ("unknown group", fetch(["no-such-group"], [(topic, [0])])),
        ("no group", fetch([""], [(topic, [0])])),
        ("no topic", fetch(groups, [])),
        ("no partition", fetch(groups, [(topic, [])])),
    ):
        both.ask(ApiKey.OFFSET_FETCH, version, request, case=case)
    if version >= 2:
        both.ask(ApiKey.OFFSET_FETCH, version, fetch(groups, None), case="all")
        both.ask(ApiKey.OFFSET_FETCH, version, fetch(["no-such-group"], None), case="all of an unknown group")
    if version >= 7:
        both.ask(ApiKey.OFFSET_FETCH, version, fetch([one], [(topic, [0])], stable=True), case="stable")


def test_deleting(both: Both, topic: str, name: Names) -> None:
    group = name()

    def delete(case: str, group_id: str, *topics: tuple[str, list[int]]) -> None:
        entries = [
            {"name": each, "partitions": [{"partition_index": index} for index in indexes]} for each, indexes in topics
        ]
        both.ask(ApiKey.OFFSET_DELETE, 0, {"group_id": group_id, "topics": entries}, case=case)
        both.ask(ApiKey.OFFSET_FETCH, 8, fetch([group], None), case=f"after: {case}")

    both.ask(ApiKey.OFFSET_COMMIT, 9, commit(group, topic, (0, 5, "m"), (1, 6, None), (2, 7, "")))
    delete("unknown group", "no-such-group", (topic, [0]))
    delete("no group", "", (topic, [0]))
    delete("nothing", group)
    delete("some", group, (topic, [0, 9]), ("no-such-topic", [0]))
    member = member_of(both, both.ask(ApiKey.JOIN_GROUP, 3, join(group)))
    delete("before the assignment", group, (topic, [1]))
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, member, 1))
    delete("of a topic not subscribed to", group, (topic, [1]))
    delete("of a topic subscribed to", group, ("topic", [0]))
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (member, None)))
    delete("empty group", group, (topic, [2]))
