from collections.abc import Iterator

import pytest

from headrace.coordinator.groups.records.classic import GroupKey, GroupMetadata, MemberMetadata
from headrace.coordinator.groups.records.codec import WrittenRecords
from headrace.coordinator.groups.records.offsets import CommittedOffset, OffsetKey
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state import shard as shard_module
from headrace.coordinator.groups.state.shard import GroupShard
from headrace.errors import ErrorCode
from tests.unit.coordinator.driver import subscription
from tests.unit.coordinator.fake_topics import FakeTopics
from tests.unit.coordinator.world import refusal

DAY_MS = 86_400_000
RETENTION_MS = 7 * DAY_MS
NOW = 100 * DAY_MS


class World:
    def __init__(self) -> None:
        self.shard = GroupShard(GroupSettings(), FakeTopics())
        self.now = NOW
        self._end = 0

    def apply(self, decision: WrittenRecords, producer_id: int = -1) -> None:
        for key, value in decision:
            if isinstance(value, CommittedOffset):
                value = value._replace(record_offset=self._end)
            self._end += 1
            self.shard.replay(key, value, now_ms=self.now, producer_id=producer_id)

    def commit(self, topic: str = "t", partition: int = 0, offset: int = 1, *, producer_id: int = -1) -> None:
        result = self.shard.commit("g", [(topic, partition, CommittedOffset(offset, -1, "", self.now))])
        self.apply(result.records, producer_id)

    def expire(self) -> set[object]:
        expired: set[object] = set()
        for decision in self.shard.decide_expiry(self.now):
            self.apply(decision)
            expired.update(key for key, _ in decision)
        return expired

    def offset(self, topic: str = "t", partition: int = 0) -> int | None:
        committed = self.shard.offsets.get("g", topic, partition)
        return None if committed is None else committed.offset

    def group(self, *members: MemberMetadata, protocol_type: str = "consumer", timestamp: int = NOW) -> None:
        leader = members[0].member_id if members else None
        protocol = "range" if members else None
        self.apply([(GroupKey("g"), GroupMetadata(protocol_type, 1, protocol, leader, timestamp, members))])


@pytest.fixture
def world() -> World:
    return World()


def member(*topics: str) -> MemberMetadata:
    return MemberMetadata("m", None, "c", "/h", 1000, 1000, subscription(*topics), b"")


def test_a_commit_of_a_simple_consumer_creates_its_group_and_the_latest_wins(world: World) -> None:
    world.commit(offset=5)
    assert world.offset() == 5
    assert world.shard.table.group("g").protocol_type is None
    world.commit(offset=3)
    assert world.offset() == 3


def test_only_the_partition_with_too_much_metadata_is_refused(world: World) -> None:
    large, largest = (CommittedOffset(1, -1, "x" * size, NOW) for size in (4097, 4096))
    result = world.shard.commit("g", [("t", 0, large), ("t", 1, largest)])
    assert result.answer == [ErrorCode.offset_metadata_too_large, ErrorCode.none]
    assert [key for key, _ in result.records] == [OffsetKey("g", "t", 1)]


def test_offsets_of_a_simple_group_expire_by_their_age(world: World) -> None:
    world.commit("t", 0)
    world.now += DAY_MS
    world.commit("t", 1)
    world.now = NOW + RETENTION_MS - 1
    assert world.expire() == set()
    world.now = NOW + RETENTION_MS
    assert world.expire() == {OffsetKey("g", "t", 0)}
    world.now += DAY_MS
    assert world.expire() == {OffsetKey("g", "t", 1), GroupKey("g")}
    assert "g" not in world.shard.groups


def test_offsets_of_an_empty_group_expire_by_the_time_it_became_empty(world: World) -> None:
    world.commit()
    world.group(timestamp=NOW + DAY_MS)
    world.now = NOW + RETENTION_MS
    assert world.expire() == set()
    world.now += DAY_MS
    assert world.expire() == {OffsetKey("g", "t", 0), GroupKey("g")}


def test_an_active_group_keeps_the_offsets_of_its_topics(world: World) -> None:
    world.commit("t")
    world.commit("left")
    world.group(member("t"))
    world.now += RETENTION_MS
    assert world.expire() == {OffsetKey("g", "left", 0)}


def test_an_active_group_with_an_unknown_subscription_keeps_all_offsets(world: World) -> None:
    world.commit()
    world.now += RETENTION_MS * 2
    for protocol_type in ("connect", "consumer"):
        world.group(member()._replace(subscription=b"?"), protocol_type=protocol_type)
        assert world.expire() == set()


def test_the_clients_retention_time_overrides_the_setting(world: World) -> None:
    world.apply([(OffsetKey("g", "t", 0), CommittedOffset(1, -1, "", NOW, expire_timestamp=NOW + DAY_MS))])
    world.now += DAY_MS
    assert world.expire() == {OffsetKey("g", "t", 0), GroupKey("g")}


def test_an_empty_group_without_offsets_expires_at_once(world: World) -> None:
    world.group()
    assert world.expire() == {GroupKey("g")}


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every decision of expiry examine a single offset or group."""
    monkeypatch.setattr(shard_module, "_EXAMINED_AT_ONCE", 1)


def test_no_decision_of_expiry_examines_more_than_the_limit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "_EXAMINED_AT_ONCE", 4)
    for partition in range(10):
        world.commit("t", partition)
    world.now += RETENTION_MS
    found = list(world.shard.expiring(world.now))
    assert found == [{}, {}, {"g": world.now}]
    sizes = []
    for decision in world.shard.decide_expiry(world.now):
        world.apply(decision)
        sizes.append(len(decision))
    assert sizes == [4, 4, 3]
    assert "g" not in world.shard.groups


def after_the_first_decision(world: World) -> Iterator[WrittenRecords]:
    """Commit two offsets, and expire the first. Return the decisions that follow."""
    world.commit("t", 0)
    world.commit("t", 1)
    world.now += RETENTION_MS
    decisions = world.shard.decide_expiry(world.now)
    world.apply(next(decisions))
    return decisions


@pytest.mark.usefixtures("one_at_a_time")
def test_expiry_keeps_an_offset_that_is_committed_between_two_decisions(world: World) -> None:
    decisions = after_the_first_decision(world)
    world.commit("t", 1, offset=2)
    world.commit("new", 0)
    assert list(decisions) == [[], []]
    assert (world.offset("t", 0), world.offset("t", 1), world.offset("new")) == (None, 2, 1)
    assert "g" in world.shard.groups


@pytest.mark.usefixtures("one_at_a_time")
def test_expiry_keeps_the_offsets_of_a_group_that_gets_members_between_two_decisions(world: World) -> None:
    decisions = after_the_first_decision(world)
    world.group(member("t"))
    assert list(decisions) == [[], []]


@pytest.mark.usefixtures("one_at_a_time")
def test_expiry_keeps_an_offset_that_a_transaction_may_change_since_the_last_decision(world: World) -> None:
    decisions = after_the_first_decision(world)
    world.commit("t", 1, offset=2, producer_id=7)
    assert list(decisions) == [[], []]


@pytest.mark.usefixtures("one_at_a_time")
def test_expiry_ignores_groups_that_are_deleted_between_two_decisions(world: World) -> None:
    world.commit("t", 0)
    world.commit("t", 1)
    world.now += RETENTION_MS
    decisions, warnings = world.shard.decide_expiry(world.now), world.shard.expiring(world.now)
    assert next(warnings) == {}
    world.apply(next(decisions))
    world.apply(world.shard.delete("g").records)
    assert list(decisions) == [[], []]
    assert list(warnings) == [{}, {}]


@pytest.mark.usefixtures("one_at_a_time")
def test_expiry_keeps_a_group_whose_tombstones_were_not_written(world: World) -> None:
    world.commit("t", 0)
    world.now += RETENTION_MS
    decisions = world.shard.decide_expiry(world.now)
    assert next(decisions) == [(OffsetKey("g", "t", 0), None)]
    assert list(decisions) == [[]]


def test_deleting_a_group_removes_its_offsets_and_those_of_open_transactions(world: World) -> None:
    world.commit("t", 0)
    world.commit("u", 3)
    world.commit("v", offset=2, producer_id=7)
    world.apply(world.shard.delete("g").records)
    world.shard.offsets.end_transaction(7, committed=True)
    assert not world.shard.groups
    assert not world.shard.offsets.of_group("g")


def test_a_group_that_has_members_or_is_unknown_cannot_be_deleted(world: World) -> None:
    for error in (ErrorCode.group_id_not_found, ErrorCode.non_empty_group):
        assert refusal(world.shard.delete, "g") is error
        world.group(member("t"))


def test_offsets_in_use_cannot_be_deleted(world: World) -> None:
    for topic in ("t", "u"):
        world.commit(topic)
    world.group(member("t"))
    result = world.shard.delete_offsets("g", [("t", 0), ("u", 0), ("v", 0)])
    assert result.answer == [ErrorCode.group_subscribed_to_topic, ErrorCode.none, ErrorCode.none]
    assert result.records == [(OffsetKey("g", "u", 0), None)]


def test_offsets_of_other_protocol_types_with_members_cannot_be_deleted(world: World) -> None:
    world.group(member("t"), protocol_type="connect")
    assert refusal(world.shard.delete_offsets, "g", [("t", 0)]) is ErrorCode.non_empty_group


def test_deleting_a_topic_removes_its_offsets_and_those_of_open_transactions(world: World) -> None:
    world.commit("t", 1, producer_id=7)
    assert world.shard.offsets.group_ids() == ["g"]
    for topic in ("t", "u"):
        world.commit(topic)
    world.apply(world.shard.decide_topics_deleted(frozenset({"t", "other"}), "g"))
    world.shard.offsets.end_transaction(7, committed=True)
    assert (world.offset("t"), world.offset("t", 1), world.offset("u")) == (None, None, 1)


def test_offsets_of_a_transaction_take_effect_only_when_it_commits(world: World) -> None:
    world.commit(offset=1)
    world.commit(offset=2, producer_id=7)
    assert world.offset() == 1
    assert world.shard.offsets.has_pending(OffsetKey("g", "t", 0))
    world.shard.offsets.end_transaction(7, committed=True)
    assert world.offset() == 2
    assert not world.shard.offsets.has_pending(OffsetKey("g", "t", 0))
    world.commit(offset=3, producer_id=7)
    world.shard.offsets.end_transaction(7, committed=False)
    assert world.offset() == 2


def test_a_plain_commit_after_a_transactional_one_wins_and_is_unstable_until_the_end(world: World) -> None:
    world.commit(offset=2, producer_id=7)
    world.commit(offset=3)
    assert world.shard.offsets.has_pending(OffsetKey("g", "t", 0))
    world.shard.offsets.end_transaction(7, committed=True)
    assert world.offset() == 3
    assert not world.shard.offsets.has_pending(OffsetKey("g", "t", 0))


def test_the_transaction_that_wrote_last_wins() -> None:
    for producers in ((7, 8), (8, 7)):
        world = World()
        world.commit(offset=2, producer_id=7)
        world.commit(offset=3, producer_id=8)
        for producer_id in producers:
            world.shard.offsets.end_transaction(producer_id, committed=True)
        assert world.offset() == 3, producers


def test_an_open_transaction_keeps_offset_and_group(world: World) -> None:
    world.commit(offset=1)
    world.commit(offset=2, producer_id=7)
    world.now += RETENTION_MS
    assert world.expire() == set()
