import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from struct import pack

import pytest

from headrace import slices
from headrace.clock import now_ms
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.effects import Happening
from headrace.coordinator.groups.records.classic import GroupKey, GroupMetadata
from headrace.coordinator.groups.records.codec import encode
from headrace.coordinator.groups.records.offsets import CommittedOffset, OffsetKey
from headrace.coordinator.groups.requests import Leaver
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state import shard as shard_module
from headrace.coordinator.runtime import shards
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, parse_header
from headrace.wire.compression import Codec
from headrace.wire.control import Marker
from headrace.wire.records import RecordData, build_batch
from tests.unit.coordinator.memory_log import MemoryLog
from tests.unit.coordinator.world import SETTINGS, World, refusal

GOLDEN = Path(__file__).parents[2] / "golden" / "consumer_offsets"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    for group in world.coordinator.groups():
        group.check()


def test_a_group_and_its_offsets_survive_a_restart(world: World) -> None:
    member_id = world.member()
    world.commit(7, member_id=member_id, generation=1)
    again = world.restarted()
    assert again.offset() == 7
    assert again.coordinator.heartbeat("g", member_id, None, 1) is ErrorCode.none
    assert again.sync(member_id, 1).result.assignment == b"mine"


def test_a_new_group_is_written_before_its_first_member(world: World) -> None:
    world.join()
    assert [key for key, _ in world.log.records()] == [GroupKey("g")]
    assert world.restarted().coordinator.group("g").state == "Empty"


def test_a_commit_that_cannot_be_written_changes_nothing(world: World) -> None:
    world.commit(1)
    world.log.error = KafkaError(ErrorCode.kafka_storage_error)
    assert refusal(world.commit, 2) is ErrorCode.not_coordinator
    assert world.offset() == 1


def test_an_assignment_that_cannot_be_written_fails_the_sync(world: World) -> None:
    member_id = world.join().result.member_id
    world.join(member_id)
    world.loop.advance(0)
    world.log.error = KafkaError(ErrorCode.message_too_large)
    assert world.sync(member_id, 1, {}).result.error is ErrorCode.unknown_server_error


def test_a_commit_is_one_batch(world: World) -> None:
    offsets = [("t", partition, CommittedOffset(1, -1, "", 0)) for partition in range(20)]
    world.coordinator.commit_offsets("g", "", None, -1, offsets)
    assert len(world.log.stored) == 1
    assert len(world.log.records()) == 20


def test_records_are_compressed_with_the_configured_codec() -> None:
    world = World(settings=GroupSettings(offsets_topic_num_partitions=1, offsets_topic_compression_codec=Codec.ZSTD))
    world.commit(7)
    assert parse_header(world.log.stored[0]).codec == Codec.ZSTD
    assert world.restarted().offset() == 7


def test_a_commit_keeps_its_member_alive(world: World) -> None:
    member_id = world.member()
    for offset in range(4):
        world.loop.advance(9)
        world.commit(offset, member_id=member_id, generation=1)
    world.loop.advance(10)
    assert world.coordinator.group("g").state == "Empty"


def test_requests_to_an_unknown_group_are_refused(world: World) -> None:
    assert refusal(world.commit, generation=3) is ErrorCode.group_id_not_found
    assert refusal(world.join, "stranger") is ErrorCode.unknown_member_id
    leaver = Leaver(member_id="m", instance_id=None, reason="")
    assert refusal(world.coordinator.leave, "g", [leaver]) is ErrorCode.unknown_member_id


def test_an_invalid_join_is_refused(world: World) -> None:
    assert refusal(world.join, group_id="") is ErrorCode.invalid_group_id
    for session_timeout_ms in (5999, 1_800_001):
        with pytest.raises(KafkaError, match=r"group\.min\.session\.timeout\.ms") as raised:
            world.join(session_timeout_ms=session_timeout_ms)
        assert raised.value.code is ErrorCode.invalid_session_timeout


def test_groups_of_other_brokers_are_refused() -> None:
    world = World(settings=GroupSettings(offsets_topic_num_partitions=50))
    assert refusal(world.join) is ErrorCode.not_coordinator


def test_a_resigned_shard_completes_waiting_requests(world: World) -> None:
    world.member()
    waiting = world.join(world.join().result.member_id)
    assert not waiting.done()
    world.coordinator.resigned(0)
    assert waiting.result.error is ErrorCode.not_coordinator
    assert refusal(world.offset) is ErrorCode.not_coordinator


def test_closing_completes_waiting_requests_and_stops_timers(world: World) -> None:
    member_id = world.join().result.member_id
    waiting = world.join(member_id)
    world.coordinator.close()
    assert waiting.result.error is ErrorCode.not_coordinator
    assert world.loop.scheduled == 0


def test_a_second_election_of_the_same_partition_changes_nothing(world: World) -> None:
    world.commit(3)
    world.coordinator.elected(0, MemoryLog())
    assert world.offset() == 3


def test_deleted_offsets_and_those_of_a_deleted_topic_are_gone_after_a_restart(world: World) -> None:
    world.commit()
    assert world.coordinator.delete_offsets("g", [("t", 0)]) == [ErrorCode.none]
    assert world.restarted().offset() is None
    world.commit()
    list(world.coordinator.topics_deleted(frozenset({"t"})))
    assert world.offset() is None
    assert world.restarted().offset() is None


def test_offsets_of_a_deleted_topic_that_cannot_be_removed_are_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.commit()
    world.log.error = KafkaError(ErrorCode.not_enough_replicas)
    list(world.coordinator.topics_deleted(frozenset({"t", "other"})))
    assert "Cannot delete the offsets of group g for deleted topics (t): " in caplog.text


def test_offsets_of_a_deleted_topic_that_moved_meanwhile_are_named(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit()
    stored = len(world.log.stored)
    steps = world.coordinator.topics_deleted(frozenset({"t"}))
    loaded = [*world.coordinator._shards.loaded()]
    monkeypatch.setattr(world.coordinator._shards, "loaded", lambda: loaded)
    world.coordinator.resigned(0)
    list(steps)
    assert len(world.log.stored) == stored
    assert "moved to another broker before all offsets of the deleted topics (t) were removed" in caplog.text


def test_the_warning_about_expiring_offsets_is_logged_once_and_ends_with_a_commit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    day_ms = 24 * 60 * 60 * 1000
    world = World(settings=replace(SETTINGS, offsets_retention_minutes=3 * 24 * 60))
    committed_at = now_ms() - 5 * day_ms // 2
    value = CommittedOffset(1, -1, "", committed_at)
    world.coordinator.commit_offsets("g", "", None, -1, [("t", 0, value)])
    assert world.coordinator.expiring_offsets() == {}
    world.loop.advance(600)
    assert world.coordinator.expiring_offsets() == {"g": committed_at + 3 * day_ms}
    assert "Group g will lose committed offsets in 7" in caplog.text
    caplog.clear()
    world.loop.advance(600)
    assert not caplog.text
    world.coordinator.commit_offsets("g", "", None, -1, [("t", 0, value._replace(commit_timestamp=now_ms()))])
    world.loop.advance(600)
    assert world.coordinator.expiring_offsets() == {}


def test_deletions_larger_than_a_batch_are_written_in_several(world: World) -> None:
    for partition in range(50):
        offsets = [("t", partition, CommittedOffset(5, -1, "", 0))]
        world.coordinator.commit_offsets("g", "", None, -1, offsets)
    before = len(world.log.stored)
    world.log.max_bytes = 500
    world.coordinator.delete_group("g")
    assert len(world.log.stored) > before + 1
    again = world.restarted()
    assert again.offset() is None
    assert not list(again.coordinator.groups())


def test_other_decisions_are_not_split_by_their_size(world: World) -> None:
    world.log.max_bytes = 500
    offsets = [("t", partition, CommittedOffset(5, -1, "", 0)) for partition in range(50)]
    assert refusal(world.coordinator.commit_offsets, "g", "", None, -1, offsets) is ErrorCode.unknown_server_error
    assert world.offset() is None


def test_a_failing_timer_does_not_affect_other_groups(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group_id in ("broken", "sound"):
        world.join(group_id=group_id)
    broken = world.coordinator.group("broken")
    monkeypatch.setattr(broken, "timer_fired", lambda *_: 1 / 0)
    world.loop.advance(10)
    assert "the heartbeat timer of group broken failed" in caplog.text
    assert not world.coordinator.classic_group("sound").membership.pending_joins


def test_a_timer_whose_records_cannot_be_written_is_retried(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.join(group_id="unlucky")
    error = KafkaError(ErrorCode.kafka_storage_error)

    def fail(*_: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(world.coordinator.group("unlucky"), "timer_fired", fail)
        world.loop.advance(10)
    assert f"the heartbeat timer of group unlucky failed and will be retried: {error}" in caplog.text
    world.loop.advance(10)
    assert not world.coordinator.classic_group("unlucky").membership.pending_joins


@pytest.fixture
def expiry_in_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A coordinator with five expired offsets. A check of expiry handles one of them in each turn."""
    monkeypatch.setattr(slices, "SLICE_S", 0)
    monkeypatch.setattr(shard_module, "_EXAMINED_AT_ONCE", 1)
    expired = [("t", partition, CommittedOffset(5, -1, "", 0)) for partition in range(5)]
    world.coordinator.commit_offsets("g", "", None, -1, expired)
    world.loop.now += SETTINGS.offsets_retention_check_interval_ms / 1000
    return world


def partitions_of(world: World) -> set[int]:
    return set(world.coordinator.committed_offsets("g").get("t", {}))


def run_until(world: World, partitions: set[int]) -> None:
    """Run single turns of the event loop until only these partitions have offsets."""
    while partitions_of(world) != partitions:
        assert partitions < partitions_of(world)
        world.loop.step()


def test_expired_offsets_are_removed_in_slices(expiry_in_steps: World) -> None:
    world = expiry_in_steps
    turns = 0
    while list(world.coordinator.groups()):
        before, stored = partitions_of(world), len(world.log.stored)
        world.loop.step()
        turns += 1
        assert len(before - partitions_of(world)) <= 1
        assert len(world.log.stored) - stored <= 1
    assert turns > 2 * 5
    assert [key for key, _ in world.log.records()[5:]] == [*(OffsetKey("g", "t", p) for p in range(5)), GroupKey("g")]


def test_expiry_keeps_offsets_that_are_committed_while_it_runs(expiry_in_steps: World) -> None:
    world = expiry_in_steps
    run_until(world, {2, 3, 4})
    renewed = CommittedOffset(6, -1, "", now_ms())
    world.coordinator.commit_offsets("g", "", None, -1, [("t", 3, renewed)])
    world.loop.advance(0)
    assert partitions_of(world) == {3}
    assert set(world.restarted().coordinator.committed_offsets("g")["t"]) == {3}


def test_a_failed_write_ends_the_expiry_of_a_shard(expiry_in_steps: World, caplog: pytest.LogCaptureFixture) -> None:
    world = expiry_in_steps
    run_until(world, {2, 3, 4})
    world.log.error = KafkaError(ErrorCode.kafka_storage_error)
    world.loop.advance(0)
    assert caplog.text.count("cannot remove expired offsets, will retry") == 1
    assert partitions_of(world) == {2, 3, 4}
    assert set(world.restarted().coordinator.committed_offsets("g")["t"]) == {2, 3, 4}

    world.log.error = None
    world.loop.advance(600)
    assert not list(world.coordinator.groups())


@pytest.mark.parametrize("turns", [0, 4, 9])
def test_expiry_ends_when_its_shard_resigns(expiry_in_steps: World, turns: int) -> None:
    world = expiry_in_steps
    for _ in range(turns):
        world.loop.step()
    world.coordinator.resigned(0)
    stored = len(world.log.stored)
    world.loop.advance(0)
    assert len(world.log.stored) == stored
    assert world.coordinator.expiring_offsets() == {}

    world.coordinator.elected(0, MemoryLog(list(world.log.stored)))
    world.loop.advance(600)
    assert not list(world.coordinator.groups())


def test_expiry_skips_shards_that_resign_before_their_turn(
    expiry_in_steps: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = expiry_in_steps
    monkeypatch.setattr(shard_module, "_EXAMINED_AT_ONCE", 2)
    other = MemoryLog([build_batch([RecordData(*encode(OffsetKey("h", "t", 0), CommittedOffset(5, -1, "", 0)), 0)])])
    world.coordinator.elected(1, other)
    world.loop.step()
    assert partitions_of(world), "the first shard has its turn"
    world.coordinator.resigned(1)
    world.loop.advance(0)
    assert not list(world.coordinator.groups())
    assert len(other.stored) == 1
    assert "Group h" not in caplog.text


def test_a_failing_check_of_expiry_does_not_affect_later_ones(
    expiry_in_steps: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = expiry_in_steps
    with monkeypatch.context() as patched:
        patched.setattr(world.coordinator.group("g"), "offset_kept_from", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            world.loop.step()
    world.loop.advance(600)
    assert not list(world.coordinator.groups())


def test_a_rebalance_is_one_log_line_and_notes_are_logged_at_debug_level(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        member_id = world.member()
        world.coordinator.leave("g", [Leaver(member_id=member_id, instance_id=None, reason="closing")])
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.INFO] == [
        (
            "Group g generation 1 is stable after 0 ms: 1 member, 0 before."
            f" Cause: adding member {member_id}; client reason: a test"
        ),
        (
            "Group g generation 2 is empty after 0 ms: 0 members, 1 before."
            " Cause: explicit LeaveGroup request for 1 member"
        ),
    ]
    assert f"Group g generation 0: member {member_id} (client id app, host /127.0.0.1) joined: a test" in caplog.text
    assert "left: closing" in caplog.text


def test_the_log_names_members_that_timed_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    member_id = world.member()
    with caplog.at_level(logging.INFO):
        world.loop.advance(10)
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        "Group g generation 2 is empty after 0 ms: 0 members, 1 before."
        f" Cause: removing member {member_id} on heartbeat expiration. Timed out: app (no heartbeat for 10000 ms)"
    )


def test_a_fenced_heartbeat_is_logged(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.join(instance_id="i")
    world.join(instance_id="i")
    with caplog.at_level(logging.INFO), pytest.raises(KafkaError):
        world.coordinator.heartbeat("g", "m1", "i", 0)
    assert "member m1 (client id , host , instance i) was fenced: Heartbeat" in caplog.text


def test_an_observer_gets_all_notes_of_a_group(world: World) -> None:
    member_id = world.member()
    world.coordinator.leave("g", [Leaver(member_id=member_id, instance_id=None, reason="closing")])
    world.coordinator.delete_group("g")

    assert [note.what for note in world.notes] == [
        Happening.MEMBER_ID_ASSIGNED,
        Happening.JOINED,
        Happening.REBALANCING,
        Happening.COMPLETING,
        Happening.ASSIGNED,
        Happening.STABLE,
        Happening.LEFT,
        Happening.REBALANCING,
        Happening.EMPTY,
        Happening.DELETED,
    ]
    joined = world.notes[1]
    assert (joined.member_id, joined.client_id, joined.client_host) == (member_id, "app", "/127.0.0.1")


# Loading


def offset_batch(offset: int, *, producer_id: int = -1, attributes: int = 0) -> bytes:
    key, value = encode(OffsetKey("g", "t", 0), CommittedOffset(offset, -1, "", 0))
    return build_batch([RecordData(key, value, 0)], producer_id=producer_id, attributes=attributes)


def control_batch(producer_id: int, kind: int) -> bytes:
    return build_batch(
        [RecordData(pack(">hh", 0, kind), bytes(6), 0)],
        producer_id=producer_id,
        attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
    )


def test_transactional_offsets_are_loaded_if_they_were_committed() -> None:
    batch = offset_batch(9, producer_id=4, attributes=TRANSACTIONAL_FLAG)
    commit, abort, other = (control_batch(4, kind) for kind in (Marker.COMMIT, Marker.ABORT, 6))
    assert World(MemoryLog([batch, commit])).offset() == 9
    assert World(MemoryLog([batch, abort])).offset() is None
    # A control record of another type does not end a transaction.
    assert World(MemoryLog([batch, other, commit])).offset() == 9
    still_open = World(MemoryLog([batch, other])).coordinator
    assert still_open.is_unstable("g", "t", 0)
    assert not still_open.is_unstable("g", "t", 1)


def test_a_partition_that_kafka_wrote_is_loaded() -> None:
    world = World(MemoryLog([(GOLDEN / "partition.bin").read_bytes()]))
    group = world.coordinator.classic_group("hrgroups-txn-21")
    assert (group.group_id, group.state, group.generation, group.protocol_type) == (
        "hrgroups-txn-21",
        "Empty",
        2,
        "consumer",
    )
    committed = world.coordinator.committed_offsets("hrgroups-txn-21")["hrgroups-txn-t"]
    assert {partition: offset.offset for partition, offset in committed.items()} == {0: 10, 1: 20}


def test_invalid_records_and_those_of_newer_versions_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    torn = build_batch([RecordData(b"\x00\x01\x00\x09torn", b"", 0), RecordData(None, b"no key", 0)])
    newer = build_batch([RecordData(b"\x00\x03\x00\x01n", b"\x00\x07", 0), RecordData(b"\x00\x63", b"", 0)])
    world = World(MemoryLog([torn, newer, offset_batch(9)]))
    assert world.offset() == 9
    assert [group.group_id for group in world.coordinator.groups()] == ["g"]
    assert caplog.text.count("skipped") == 2


def test_a_shard_with_a_corrupt_batch_is_not_served(caplog: pytest.LogCaptureFixture) -> None:
    corrupt = bytearray(offset_batch(9))
    corrupt[57:61] = (99).to_bytes(4, "big")
    world = World(MemoryLog([bytes(corrupt)]))
    assert refusal(world.offset) is ErrorCode.not_coordinator
    assert "cannot be loaded" in caplog.text


def test_requests_are_refused_while_a_long_log_is_loaded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_LOAD_SLICE_S", 0.0001)
    other = World()
    for group in range(20):
        offsets = [("t", partition, CommittedOffset(1, -1, "", 0)) for partition in range(40)]
        other.coordinator.commit_offsets(f"g{group}", "", None, -1, offsets)
    coordinator = GroupCoordinator(SETTINGS, world.loop.as_loop(), world.topics)
    coordinator.elected(0, MemoryLog(other.log.stored))
    for _ in range(3):
        assert refusal(coordinator.committed_offsets, "g0") is ErrorCode.coordinator_load_in_progress
        assert refusal(list, coordinator.groups()) is ErrorCode.coordinator_load_in_progress
        world.loop.step()
    world.loop.advance(0)
    assert len(coordinator.committed_offsets("g19")["t"]) == 40
    assert len(list(coordinator.groups())) == 20


def test_records_are_in_kafkas_order(world: World) -> None:
    member_id = world.member()
    world.commit(7, member_id=member_id, generation=1)
    kinds = [(type(key), type(value)) for key, value in world.log.records()]
    assert kinds == [(GroupKey, GroupMetadata), (GroupKey, GroupMetadata), (OffsetKey, CommittedOffset)]
