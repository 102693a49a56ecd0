"""The life cycle of classic groups with dynamic and static members, and all refusals."""

from typing import Any

import pytest

from headrace.wire.apis import ApiKey
from tests.parity.both import Both, Names, Side, every_version
from tests.parity.members import heartbeat, join, joined, leave, member_of, sync
from tests.support.waiting import wait_for


def describe(*groups: str, operations: bool = False) -> dict[str, Any]:
    return {"groups": groups, "include_authorized_operations": operations}


@every_version(ApiKey.JOIN_GROUP)
def test_joining(version: int, both: Both, name: Names) -> None:
    group = name()
    for case, request in (
        ("unknown member", join(group, "stranger")),
        ("short session", join(group, session_timeout=1)),
        ("long session", join(group, session_timeout=10**9)),
        ("no group", join("")),
        ("no protocols", join(group, protocols=())),
        ("no protocol type", join(group, protocol_type="")),
    ):
        both.ask(ApiKey.JOIN_GROUP, version, request, case=case)
    member = member_of(both, joined(both, group, version))
    for case, request in (
        ("another protocol type", join(group, protocol_type="connect")),
        ("no common protocol", join(group, protocols=("sticky",))),
        ("unknown member", join(group, "stranger")),
    ):
        both.ask(ApiKey.JOIN_GROUP, version, request, case=case)
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, member, 1))
    both.ask(ApiKey.JOIN_GROUP, version, join(group, member), case="the leader again")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (member, None)))
    both.ask(ApiKey.JOIN_GROUP, version, join(group, member), case="after leaving")


@every_version(ApiKey.SYNC_GROUP)
def test_syncing(version: int, both: Both, name: Names) -> None:
    group = name()
    member = member_of(both, joined(both, group))
    for case, request in (
        ("generation", sync(group, member, 9)),
        ("stranger", sync(group, "stranger", 1)),
        ("no member", sync(group, "", 1)),
        ("no group", sync("", member, 1)),
        ("unknown group", sync("no-such-group", member, 1)),
        ("protocol", sync(group, member, 1, protocol_name="sticky")),
        ("protocol type", sync(group, member, 1, protocol_type="connect")),
        ("no protocol type", sync(group, member, 1, protocol_type=None)),
        ("instance", sync(group, member, 1, group_instance_id="i")),
        ("good", sync(group, member, 1)),
        ("again", sync(group, member, 1, None)),
    ):
        both.ask(ApiKey.SYNC_GROUP, version, request, case=case)
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (member, None)))
    both.ask(ApiKey.SYNC_GROUP, version, sync(group, member, 1), case="after leaving")


@every_version(ApiKey.HEARTBEAT)
def test_heartbeats(version: int, both: Both, name: Names) -> None:
    group = name()
    member = member_of(both, joined(both, group))
    both.ask(ApiKey.HEARTBEAT, version, heartbeat(group, member, 1), case="before the assignment")
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, member, 1))
    for case, request in (
        ("good", heartbeat(group, member, 1)),
        ("generation", heartbeat(group, member, 9)),
        ("stranger", heartbeat(group, "stranger", 1)),
        ("no group", heartbeat("", member, 1)),
        ("unknown group", heartbeat("no-such-group", member, 1)),
        ("instance", heartbeat(group, member, 1, "i")),
    ):
        both.ask(ApiKey.HEARTBEAT, version, request, case=case)
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (member, None)))
    both.ask(ApiKey.HEARTBEAT, version, heartbeat(group, member, 1), case="after leaving")


@every_version(ApiKey.LEAVE_GROUP)
def test_leaving(version: int, both: Both, name: Names) -> None:
    group = name()
    member = member_of(both, joined(both, group))
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, member, 1))
    for case, request in (
        ("no group", leave("", (member, None))),
        ("unknown group", leave("no-such-group", (member, None))),
        ("stranger", leave(group, ("stranger", None))),
    ):
        both.ask(ApiKey.LEAVE_GROUP, version, request, case=case)
    if version >= 3:
        several = leave(group, ("stranger", None), ("", "unknown instance"), (member, "wrong instance"), ("", None))
        both.ask(ApiKey.LEAVE_GROUP, version, several, case="several")
        both.ask(ApiKey.LEAVE_GROUP, version, leave(group), case="nobody")
    both.ask(ApiKey.LEAVE_GROUP, version, leave(group, (member, None)), case="good")
    both.ask(ApiKey.LEAVE_GROUP, version, leave(group, (member, None)), case="again")
    both.ask(ApiKey.DESCRIBE_GROUPS, 6, describe(group))


@every_version(ApiKey.JOIN_GROUP)
def test_two_members(version: int, both: Both, name: Names) -> None:
    group = name()
    others = min(version, 4)
    one = member_of(both, joined(both, group, version, on="one"))
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, one, 1), on="one")
    answers = None
    if version >= 4:
        answers = both.ask(ApiKey.JOIN_GROUP, version, join(group), case="second", on="two")
    both.send(ApiKey.JOIN_GROUP, version, join(group, member_of(both, answers) if answers else ""), on="two")
    # the second member waits until the first learns of it from a heartbeat and joins again
    for side in both.sides:
        message = heartbeat(group, one, 1)
        assert callable(message)
        while side.ask(ApiKey.HEARTBEAT, others, message(side), "one")["error_code"] == "none":
            pass
    both.ask(ApiKey.HEARTBEAT, others, heartbeat(group, one, 1), on="one", case="rebalance")
    both.ask(ApiKey.DESCRIBE_GROUPS, 5, describe(group), case="rebalance")
    both.ask(ApiKey.JOIN_GROUP, version, join(group, one), case="first again", on="one")
    two = member_of(both, both.receive(ApiKey.JOIN_GROUP, version, case="second", on="two"))
    both.ask(ApiKey.DESCRIBE_GROUPS, 5, describe(group), case="joined")

    def assignments(side: Side) -> list[dict[str, Any]]:
        return [
            {"member_id": one(side), "assignment": b"first"},
            {"member_id": two(side), "assignment": b"second"},
        ]

    both.send(ApiKey.SYNC_GROUP, 5, sync(group, two, 2, None), on="two")
    leading = lambda side: sync(group, one, 2, assignments=assignments(side))(side)  # type: ignore[operator]  # noqa: E731
    both.ask(ApiKey.SYNC_GROUP, 5, leading, case="leader", on="one")
    both.receive(ApiKey.SYNC_GROUP, 5, case="follower", on="two")
    both.ask(ApiKey.DESCRIBE_GROUPS, 5, describe(group), case="stable")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (one, None)), case="leader leaves", on="one")
    both.ask(ApiKey.HEARTBEAT, others, heartbeat(group, two, 2), case="alone", on="two")
    both.ask(ApiKey.JOIN_GROUP, version, join(group, two), case="alone", on="two")
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, two, 3), case="alone", on="two")
    both.ask(ApiKey.DESCRIBE_GROUPS, 5, describe(group), case="alone")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (two, None)), case="last leaves", on="two")


@every_version(ApiKey.JOIN_GROUP, since=5)
def test_static_members(version: int, both: Both, name: Names) -> None:
    group = name()
    old = member_of(both, joined(both, group, version, instance="i"))
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, old, 1, group_instance_id="i"))
    new = member_of(both, joined(both, group, version, instance="i"))
    for case, api, top, request in (
        ("old heartbeat", ApiKey.HEARTBEAT, 4, heartbeat(group, old, 1, "i")),
        ("old sync", ApiKey.SYNC_GROUP, 5, sync(group, old, 1, group_instance_id="i")),
        ("old join", ApiKey.JOIN_GROUP, version, join(group, old, instance="i")),
        ("old leave among others", ApiKey.LEAVE_GROUP, 3, leave(group, (old, "i"), ("stranger", "i"), ("", "j"))),
        ("new sync", ApiKey.SYNC_GROUP, 5, sync(group, new, 1, None, group_instance_id="i")),
        ("new heartbeat", ApiKey.HEARTBEAT, 4, heartbeat(group, new, 1, "i")),
        ("without the instance", ApiKey.HEARTBEAT, 4, heartbeat(group, new, 1)),
        ("another instance", ApiKey.HEARTBEAT, 4, heartbeat(group, new, 1, "j")),
        ("described", ApiKey.DESCRIBE_GROUPS, 6, describe(group, operations=True)),
        ("old leaves", ApiKey.LEAVE_GROUP, 5, leave(group, (old, "i"))),
        ("leaves by instance", ApiKey.LEAVE_GROUP, 5, leave(group, ("", "i"))),
        ("empty", ApiKey.DESCRIBE_GROUPS, 6, describe(group)),
    ):
        both.ask(api, top, request, case=case)


@every_version(ApiKey.JOIN_GROUP)
def test_a_full_group(version: int, both: Both, name: Names) -> None:
    group = name()
    # before version 4, a single request joins
    one = member_of(both, both.ask(ApiKey.JOIN_GROUP, 3, join(group), case="the first", on="one"))
    for number, connection in enumerate(("two", "three"), 2):
        both.send(ApiKey.JOIN_GROUP, 3, join(group), on=connection)
        wait_for_members(both, group, number)
    both.send(ApiKey.JOIN_GROUP, 3, join(group, one), on="one")
    two, three = (
        member_of(both, both.receive(ApiKey.JOIN_GROUP, 3, case="another", on=item)) for item in ("two", "three")
    )
    both.receive(ApiKey.JOIN_GROUP, 3, case="the first again", on="one")

    def one_too_many(when: str) -> None:
        answers = both.ask(ApiKey.JOIN_GROUP, version, join(group), case=f"one too many, {when}", on="four")
        if answers.kafka["error_code"] == "member_id_required":
            request = join(group, member_of(both, answers))
            both.ask(ApiKey.JOIN_GROUP, version, request, case=f"one too many with its id, {when}", on="four")
        both.ask(ApiKey.JOIN_GROUP, version, join(group, "stranger"), case=f"unknown member, {when}", on="four")

    one_too_many("before the assignment")
    both.ask(ApiKey.SYNC_GROUP, 3, sync(group, one, 2), on="one")
    one_too_many("stable")
    both.ask(ApiKey.DESCRIBE_GROUPS, 6, describe(group), case="full")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (two, None), (three, None)), case="two leave")
    both.ask(ApiKey.JOIN_GROUP, version, join(group, one), case="has room")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (one, None)), case="the last leaves")


def test_the_last_to_rejoin_a_full_group_is_refused(both: Both, name: Names) -> None:
    group = name()
    request = join(group, rebalance_timeout=500)
    one = member_of(both, both.ask(ApiKey.JOIN_GROUP, 3, request, case="the first", on="one"))
    for number, connection in enumerate(("two", "three", "four"), 2):
        both.send(ApiKey.JOIN_GROUP, 3, request, on=connection)
        wait_for_members(both, group, number)
    both.ask(ApiKey.JOIN_GROUP, 9, join(group, one), case="the first again", on="one")
    for connection in ("two", "three", "four"):
        # Kafka picks the new leader from a hash map
        both.receive(ApiKey.JOIN_GROUP, 3, case="others", on=connection, only=lambda answer: answer["generation_id"])


@pytest.mark.parametrize("rebalance_timeout", [0, -1])
def test_a_rebalance_timeout_of_zero_leaves_no_time_to_sync(both: Both, name: Names, rebalance_timeout: int) -> None:
    group = name()
    request = join(group, rebalance_timeout=rebalance_timeout)
    member = member_of(both, both.ask(ApiKey.JOIN_GROUP, 3, request, case="joined"))
    wait_for_members(both, group, 0)
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, member, 1), case="sync")
    both.ask(ApiKey.HEARTBEAT, 4, heartbeat(group, member, 1), case="heartbeat")
    both.ask(ApiKey.DESCRIBE_GROUPS, 6, describe(group), case="empty")


def wait_for_members(both: Both, group: str, count: int) -> None:
    def is_complete() -> bool:
        described = [side.ask(ApiKey.DESCRIBE_GROUPS, 5, describe(group), "parity")["groups"][0] for side in both.sides]
        return all(len(item["members"]) == count for item in described)

    wait_for(is_complete, f"{count} members of {group}")


@every_version(ApiKey.FIND_COORDINATOR)
def test_coordinators(version: int, both: Both) -> None:
    for case, key_type, keys in (
        ("group", 0, ["g"]),
        ("two groups", 0, ["g", "h"]),
        ("no name", 0, [""]),
        ("no key", 0, []),
        ("share", 2, ["g:AAAAAAAAAAAAAAAAAAAAAA:0"]),
        ("unknown kind", 9, ["g"]),
    ):
        if version >= 4 or len(keys) == 1:
            message = {"key": keys[0] if keys else "", "key_type": key_type, "coordinator_keys": keys}
            both.ask(ApiKey.FIND_COORDINATOR, version, message, case=case)


@every_version(ApiKey.DESCRIBE_GROUPS)
def test_groups_are_described(version: int, both: Both, name: Names) -> None:
    group = name()
    both.ask(ApiKey.DESCRIBE_GROUPS, version, describe("no-such-group"), case="unknown")
    if version >= 3:
        both.ask(ApiKey.DESCRIBE_GROUPS, version, describe("no-such-group", operations=True), case="unknown, allowed")
    member = member_of(both, joined(both, group))
    both.ask(ApiKey.DESCRIBE_GROUPS, version, describe(group), case="before the assignment")
    both.ask(ApiKey.SYNC_GROUP, 5, sync(group, member, 1))
    both.ask(ApiKey.DESCRIBE_GROUPS, version, describe(group, operations=version >= 3), case="stable")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (member, None)))
    both.ask(ApiKey.DESCRIBE_GROUPS, version, describe(group), case="empty")


@every_version(ApiKey.LIST_GROUPS)
def test_groups_are_listed(version: int, both: Both, name: Names) -> None:
    stable, empty = name(), name()
    both.ask(ApiKey.SYNC_GROUP, 5, sync(stable, member_of(both, joined(both, stable)), 1))
    member = member_of(both, joined(both, empty))
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(empty, (member, None)))

    def own(answer: Any) -> Any:
        if isinstance(answer, str):
            return answer
        return {**answer, "groups": [item for item in answer["groups"] if item["group_id"] in (stable, empty)]}

    for states in ([], ["Empty"], ["empty"], ["Stable", "Empty"], ["Dead"], ["nonsense"]):
        for types in ([], ["classic"], ["Classic"], ["consumer"], ["nonsense"]):
            if (states and version < 4) or (types and version < 5):
                continue
            both.send(ApiKey.LIST_GROUPS, version, {"states_filter": states, "types_filter": types})
            both.receive(ApiKey.LIST_GROUPS, version, case=f"{states} {types}", only=own)


@every_version(ApiKey.DELETE_GROUPS)
def test_groups_are_deleted(version: int, both: Both, name: Names) -> None:
    stable, empty = name(), name()
    both.ask(ApiKey.SYNC_GROUP, 5, sync(stable, member_of(both, joined(both, stable)), 1))
    member = member_of(both, joined(both, empty))
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(empty, (member, None)))
    for case, groups in (
        ("several", [stable, empty, "no-such-group"]),
        ("again", [empty]),
        ("twice", [stable, stable]),
        ("none", []),
    ):
        both.ask(ApiKey.DELETE_GROUPS, version, {"groups_names": groups}, case=case)
