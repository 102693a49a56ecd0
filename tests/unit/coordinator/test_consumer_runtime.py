"""Groups of both protocols in one coordinator: loading, conversion, offsets and timers."""

import logging
from dataclasses import replace
from typing import Any

import pytest

from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.effects import Happening
from headrace.coordinator.groups.records.classic import GroupKey
from headrace.coordinator.groups.records.consumer import ConsumerGroupKey
from headrace.coordinator.groups.records.offsets import CommittedOffset
from headrace.coordinator.groups.requests import Leaver
from headrace.coordinator.groups.settings import GroupSettings
from headrace.errors import ErrorCode, KafkaError
from tests.unit.coordinator.world import SETTINGS, World, beat, refusal


def offset(world: World, member_id: str, epoch: int, *, knows_epochs: bool = True) -> list[ErrorCode]:
    value = CommittedOffset(7, -1, "", 0, topic_id=b"t".ljust(16, b"\0"))
    return world.coordinator.commit_offsets("g", member_id, None, epoch, [("t", 0, value)], knows_epochs=knows_epochs)


def test_a_group_survives_a_restart() -> None:
    world = World()
    epoch = beat(world).epoch
    again = world.restarted()
    assert [note.what for note in again.notes] == [Happening.LOADED]
    assert beat(again, epoch=epoch, owned=None).epoch == epoch


def test_members_of_a_loaded_group_time_out() -> None:
    world = World()
    beat(world)
    again = world.restarted()
    again.loop.advance(46)
    group = again.coordinator.group("g")
    assert isinstance(group, ConsumerGroup)
    assert group.is_empty


def test_stable_fenced_and_empty_are_noted() -> None:
    world = World()
    epoch = beat(world).epoch
    assert [note.what for note in world.notes][-1] is Happening.STABLE

    with pytest.raises(KafkaError):
        beat(world, epoch=epoch + 5, owned=None)
    assert world.notes[-1].what is Happening.FENCED
    assert (world.notes[-1].member_id, world.notes[-1].client_id) == ("a", "app")

    beat(world, epoch=-1, owned=None)
    assert [note.what for note in world.notes][-1] is Happening.EMPTY


def test_a_heartbeat_that_cannot_be_written_changes_nothing() -> None:
    world = World()
    world.log.error = KafkaError(ErrorCode.kafka_storage_error)
    with pytest.raises(KafkaError):
        beat(world)
    world.log.error = None
    with pytest.raises(KafkaError):
        world.coordinator.group("g")
    assert beat(world).epoch == 2


def test_a_member_that_could_not_be_removed_is_removed_later() -> None:
    world = World()
    beat(world)
    world.log.error = KafkaError(ErrorCode.kafka_storage_error)
    world.loop.advance(45.5)
    world.log.error = None
    world.loop.advance(2)
    group = world.coordinator.group("g")
    assert isinstance(group, ConsumerGroup)
    assert group.is_empty


def test_an_empty_classic_group_becomes_a_consumer_group_and_keeps_its_offsets() -> None:
    world = World()
    offset(world, "", -1)
    beat(world)
    assert isinstance(world.coordinator.group("g"), ConsumerGroup)
    assert world.coordinator.committed_offsets("g")["t"][0].offset == 7
    assert (GroupKey("g"), None) in world.log.records()


def test_a_classic_group_with_members_stays_classic() -> None:
    world = World()
    world.member()
    assert refusal(beat, world) is ErrorCode.group_id_not_found


def test_an_empty_consumer_group_becomes_a_classic_group() -> None:
    world = World()
    beat(world)
    beat(world, epoch=-1)
    world.member()
    assert world.coordinator.classic_group("g").membership.members
    assert (ConsumerGroupKey("g"), None) in world.log.records()
    assert world.restarted().coordinator.classic_group("g").group_id == "g"


def test_classic_members_cannot_join_a_consumer_group_if_migration_is_disabled() -> None:
    world = World(settings=replace(SETTINGS, group_consumer_migration_policy="disabled"))
    beat(world)
    assert world.join().result.error is ErrorCode.inconsistent_group_protocol
    assert refusal(world.coordinator.heartbeat, "g", "a", None, 2) is ErrorCode.unknown_member_id


def test_commits_need_the_members_epoch_and_a_version_with_epochs() -> None:
    world = World()
    epoch = beat(world).epoch
    assert offset(world, "a", epoch) == [ErrorCode.none]
    for arguments, code in (
        (("a", epoch + 1), ErrorCode.stale_member_epoch),
        (("b", epoch), ErrorCode.unknown_member_id),
    ):
        assert refusal(offset, world, *arguments) is code
    for item in (epoch, epoch + 1):
        assert refusal(offset, world, "a", item, knows_epochs=False) is ErrorCode.unsupported_version


def test_fetches_need_the_members_epoch() -> None:
    world = World()
    epoch = beat(world).epoch
    world.coordinator.check_offset_fetch("g", None, -1)
    world.coordinator.check_offset_fetch("g", "a", epoch)
    assert refusal(world.coordinator.check_offset_fetch, "g", "a", epoch - 1) is ErrorCode.stale_member_epoch


def test_offsets_of_subscribed_topics_are_not_deleted() -> None:
    world = World()
    offset(world, "a", beat(world).epoch)
    assert world.coordinator.delete_offsets("g", [("t", 0), ("u", 0)]) == [
        ErrorCode.group_subscribed_to_topic,
        ErrorCode.none,
    ]


def test_only_an_empty_group_can_be_deleted() -> None:
    world = World()
    offset(world, "a", beat(world).epoch)
    assert refusal(world.coordinator.delete_group, "g") is ErrorCode.non_empty_group
    beat(world, epoch=-1)
    world.coordinator.delete_group("g")
    again = world.restarted()
    assert not list(again.coordinator.groups())
    assert not again.coordinator.committed_offsets("g")


def test_an_admin_can_remove_members() -> None:
    world = World()
    beat(world)
    beat(world, "s", instance_id="i")
    leavers = [Leaver(member_id=each, instance_id=instance, reason="") for each, instance in (("a", None), ("", "i"))]
    assert world.coordinator.leave("g", leavers) == [ErrorCode.none, ErrorCode.none]
    assert world.coordinator.leave("g", leavers) == [ErrorCode.unknown_member_id, ErrorCode.unknown_member_id]


def test_a_group_may_have_its_own_settings() -> None:
    settings = GroupSettings(offsets_topic_num_partitions=1)
    world = World(settings=settings)
    settings.by_group["g"] = GroupSettings(group_consumer_heartbeat_interval_ms=777)
    assert beat(world).heartbeat_interval_ms == 777
    assert SETTINGS.of("g").group_consumer_heartbeat_interval_ms == 5000


def test_an_invalid_heartbeat_is_refused() -> None:
    invalid: dict[ErrorCode, list[dict[str, Any]]] = {
        ErrorCode.invalid_request: [
            {"member_id": ""},
            {"instance_id": " "},
            {"rebalance_timeout_ms": -1},
            {"owned": None},
            {"topics": None},
            {"epoch": -2},
            {"epoch": -3},
        ],
        ErrorCode.unsupported_assignor: [{"assignor": "sticky"}],
        ErrorCode.group_id_not_found: [{"epoch": 3}],
    }
    world = World()
    for code, cases in invalid.items():
        for changes in cases:
            assert refusal(beat, world, **changes) is code, changes


def test_a_rebalance_that_ends_at_once_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World(settings=replace(SETTINGS, group_consumer_assignment_interval_ms=0))
    epoch = beat(world).epoch
    world.notes.clear()
    with caplog.at_level(logging.INFO):
        beat(world, epoch=epoch, topics=("t", "u"), owned=None)
    assert [note.what for note in world.notes][-1] is Happening.STABLE
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        f"Group g generation {epoch + 1} is stable after 0 ms: 1 member, 1 before."
        " Cause: member a (app) changed its subscription"
    )
