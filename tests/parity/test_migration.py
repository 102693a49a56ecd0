"""Groups that switch between the classic and the consumer protocol (KIP-848) while they have members."""

from typing import Any

from headrace.coordinator.groups.records.embedded import encode_assignment
from headrace.wire.apis import ApiKey
from tests.parity import members
from tests.parity.both import Both, Names, Request, Side
from tests.parity.members import CONSUMER, Member, beat, create_topic, heartbeat, leave, member_of
from tests.support.waiting import wait_for

JOIN, SYNC, BEAT, CONSUMER_BEAT = (
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.CONSUMER_GROUP_HEARTBEAT,
)


def subscription(topic: str, owned: tuple[int, ...] = ()) -> bytes:
    """Encode version 1 of the embedded subscription, with the owned partitions."""
    topics = b"\x00\x01\x00\x00\x00\x01" + len(topic).to_bytes(2, "big") + topic.encode()
    partitions = {topic: list(owned)} if owned else {}
    return topics + b"\xff\xff\xff\xff" + encode_assignment(partitions, 0)[2:-4]


def join(group: str, topic: str, member: Member | str = "", *, owned: tuple[int, ...] = (), **fields: Any) -> Request:
    cooperative = {
        "protocols": ("cooperative-sticky", "range"),
        "metadata": subscription(topic, owned),
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
    }
    return members.join(group, member, **{**cooperative, **fields})


def sync(group: str, member: Member, generation: int, assignment: bytes | None = None, **fields: Any) -> Request:
    return members.sync(group, member, generation, assignment, **{"protocol_name": "cooperative-sticky", **fields})


def upgrade(both: Both, group: str, topic: str) -> Member:
    """Let a consumer join the group of a classic member with all of `topic`, and return that member."""
    first = both.ask(JOIN, 9, join(group, topic), case="join")
    member = member_of(both, first)
    both.ask(JOIN, 9, join(group, topic, member), case="join with the id")
    both.ask(SYNC, 5, sync(group, member, 1, encode_assignment({topic: [0, 1, 2, 3]}, 1)))
    both.ask(CONSUMER_BEAT, 1, beat(group, 0, topics=[topic]), case="a consumer joins", on="consumer")
    return member


def describe_group(both: Both, group: str, case: str) -> None:
    both.ask(ApiKey.DESCRIBE_GROUPS, 6, {"groups": [group], "include_authorized_operations": False}, case=case)
    request = {"group_ids": [group], "include_authorized_operations": False}
    both.ask(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, request, case=case)


def test_a_group_moves_to_the_consumer_protocol_and_back(both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 4)
    member = upgrade(both, group, topic)
    describe_group(both, group, "upgraded")
    both.ask(BEAT, 4, heartbeat(group, member, 1), case="has to rejoin")
    both.ask(SYNC, 5, sync(group, member, 1), case="has to rejoin")
    both.ask(JOIN, 9, join(group, topic, member, owned=(0, 1, 2, 3)), case="owns all")
    both.ask(BEAT, 4, heartbeat(group, member, 1), case="has to revoke")
    both.ask(SYNC, 5, sync(group, member, 1), case="has to revoke")
    both.ask(CONSUMER_BEAT, 1, beat(group, 2), case="waits", on="consumer")
    both.ask(JOIN, 9, join(group, topic, member, owned=(0, 1)), case="has revoked")
    for case, request in (
        ("former generation", sync(group, member, 1)),
        ("another protocol", sync(group, member, 2, protocol_name="range")),
        ("another type", sync(group, member, 2, protocol_type="connect")),
        ("good", sync(group, member, 2)),
        ("again", sync(group, member, 2)),
    ):
        both.ask(SYNC, 5, request, case=case)
    for case, request in (
        ("good", heartbeat(group, member, 2)),
        ("former generation", heartbeat(group, member, 1)),
        ("unknown member", heartbeat(group, "stranger", 2)),
        ("consumer", heartbeat(group, CONSUMER, 2)),
        ("instance", heartbeat(group, member, 2, "i")),
    ):
        both.ask(BEAT, 4, request, case=case)
    both.ask(CONSUMER_BEAT, 1, beat(group, 2), case="has its partitions", on="consumer")
    describe_group(both, group, "settled")
    both.ask(CONSUMER_BEAT, 1, beat(group, -1), case="leaves", on="consumer")
    describe_group(both, group, "downgraded")
    both.ask(BEAT, 4, heartbeat(group, member, 2), case="downgraded")
    both.ask(JOIN, 9, join(group, topic, member, owned=(0, 1)), case="downgraded")
    both.ask(SYNC, 5, sync(group, member, 3, encode_assignment({topic: [0, 1, 2, 3]}, 1)), case="downgraded")
    both.ask(BEAT, 4, heartbeat(group, member, 3), case="settled")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (member, None)))


def test_classic_members_join_a_consumer_group(both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 2)
    both.ask(CONSUMER_BEAT, 1, beat(group, 0, topics=[topic]), on="consumer")
    for case, request in (
        ("another type", join(group, topic, protocol_type="connect")),
        ("no protocols", join(group, topic, protocols=())),
        ("no type", join(group, topic, protocol_type="")),
    ):
        both.ask(JOIN, 9, request, case=case)
    member = member_of(both, both.ask(JOIN, 9, join(group, topic), case="without an id"))
    both.ask(JOIN, 9, join(group, topic, member, metadata=b"\x00"), case="malformed")
    both.ask(JOIN, 9, join(group, topic, member, protocols=("range",)), case="with the id")
    both.ask(JOIN, 9, join(group, topic, protocols=("sticky",)), case="no protocol in common")
    leavers = leave(group, ("stranger", None), ("", "i"), (member, "i"), (CONSUMER, None), (CONSUMER, None))
    both.ask(ApiKey.LEAVE_GROUP, 5, leavers, case="several leave")
    describe_group(both, group, "downgraded")
    both.ask(ApiKey.LEAVE_GROUP, 5, leave(group, (member, None)), case="the last leaves")
    describe_group(both, group, "empty")


def test_static_members_switch_protocols(both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 4)
    both.ask(CONSUMER_BEAT, 1, beat(group, 0, topics=[topic], instance="i"), on="consumer")
    classic = member_of(both, both.ask(JOIN, 9, join(group, topic, instance="i"), case="takes over"))
    describe_group(both, group, "downgraded")
    both.ask(CONSUMER_BEAT, 1, beat(group, 2, instance="i"), case="fenced", on="consumer")
    both.ask(SYNC, 5, sync(group, classic, 2, group_instance_id="i"))
    both.ask(BEAT, 4, heartbeat(group, classic, 2, "i"))
    both.ask(CONSUMER_BEAT, 1, beat(group, 0, topics=[topic], instance="i"), case="takes over", on="consumer")
    describe_group(both, group, "upgraded")
    both.ask(BEAT, 4, heartbeat(group, classic, 2, "i"), case="fenced")
    both.ask(JOIN, 9, join(group, topic, classic, instance="i"), case="fenced")
    both.ask(SYNC, 5, sync(group, classic, 2, group_instance_id="i"), case="fenced")


def test_commits_of_a_mixed_group(both: Both, name: Names) -> None:
    group, topic = name(), create_topic(both, name, 4)
    member = upgrade(both, group, topic)
    for case, version, epoch, sender in (
        ("the classic member", 8, 1, member),
        ("a newer generation", 8, 9, member),
        ("the consumer", 9, 2, lambda _: CONSUMER),
        ("the consumer, with an old version", 8, 2, lambda _: CONSUMER),
        ("a newer epoch", 9, 9, lambda _: CONSUMER),
        ("an unknown member", 9, 1, lambda _: "stranger"),
    ):

        def message(side: Side, epoch: int = epoch, sender: Member = sender) -> dict[str, Any]:
            partition = {"partition_index": 0, "committed_offset": 1}
            return {
                "group_id": group,
                "generation_id_or_member_epoch": epoch,
                "member_id": sender(side),
                "topics": [{"name": topic, "partitions": [{**partition, "committed_metadata": ""}]}],
            }

        both.ask(ApiKey.OFFSET_COMMIT, version, message, case=case)


def test_groups_that_cannot_be_upgraded(both: Both, name: Names) -> None:
    for case, options, assignment in (
        ("another type", {"protocol_type": "connect"}, b"x"),
        ("a custom assignor", {}, b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x04data"),
        ("malformed", {}, b"\x00"),
    ):
        group, topic = name(), create_topic(both, name, 1)
        member = member_of(both, both.ask(JOIN, 9, join(group, topic, **options)))  # type: ignore[arg-type]
        both.ask(JOIN, 9, join(group, topic, member, **options))  # type: ignore[arg-type]
        kind = options.get("protocol_type", "consumer")
        both.ask(SYNC, 5, sync(group, member, 1, assignment, protocol_type=kind), case=case)
        both.ask(CONSUMER_BEAT, 1, beat(group, 0, topics=[topic]), case=case, on="consumer")
        both.ask(BEAT, 4, heartbeat(group, member, 1), case=f"{case}, classic heartbeat")


def test_a_dropped_topic_is_revoked_at_once(both: Both, name: Names) -> None:
    group, one, other = name(), create_topic(both, name, 1), create_topic(both, name, 1)
    # long enough to prevent another assignment
    config = {"name": "consumer.assignment.interval.ms", "config_operation": 0, "value": "15000"}
    resource = {"resource_type": 32, "resource_name": group, "configs": [config]}
    both.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})

    def is_set() -> bool:
        resources = [{"resource_type": 32, "resource_name": group, "configuration_keys": [config["name"]]}]
        message = {"resources": resources}
        answers = [side.ask(ApiKey.DESCRIBE_CONFIGS, 4, message, "parity") for side in both.sides]
        return all(answer["results"][0]["configs"][0]["value"] == config["value"] for answer in answers)

    wait_for(is_set, "the setting of the group")
    both.ask(CONSUMER_BEAT, 1, beat(group, 0, topics=[one, other]), on="consumer")
    both.ask(CONSUMER_BEAT, 1, beat(group, 2, topics=[one]), case="drops a topic", on="consumer")
    describe_group(both, group, "revoking")
    both.ask(CONSUMER_BEAT, 1, beat(group, 2, owned=(one, (0,))), case="has revoked it", on="consumer")
    describe_group(both, group, "revoked")
