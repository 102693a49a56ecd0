"""Sweeps over all groups, and the history they are written to."""

import asyncio
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.classic.membership import ClassicMember
from headrace.coordinator.groups.classic.rebalance import Rebalance
from headrace.coordinator.groups.classic.views import reads_of
from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat
from headrace.coordinator.groups.records.embedded import encode_assignment
from headrace.coordinator.groups.records.offsets import CommittedOffset
from headrace.coordinator.groups.requests import Leaver
from headrace.coordinator.groups.settings import GroupSettings
from headrace.monitoring.groups import pruning
from headrace.monitoring.groups.recorder import GroupHistory
from headrace.monitoring.groups.sampler import GroupSampler, Reset, Wanted, look_up_times
from headrace.monitoring.groups.standing import Trend
from headrace.storage.log.producers.open_transactions import OpenTransactions
from headrace.types import TopicPartition
from tests.unit.coordinator.fake_topics import FakeTopics
from tests.unit.coordinator.memory_log import MemoryLog
from tests.unit.monitoring.groups.stored import samples
from tests.unit.storage.logs import NOW, append, open_log

SETTINGS = GroupSettings(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)


class Topics:
    """Topic `t` with two partitions on disk; partition 1 is offline while `is_offline`."""

    def __init__(self, directory: Path) -> None:
        self.logs = [open_log(directory / str(index)) for index in range(2)]
        for log in self.logs:
            for place in range(2):
                append(log, 50, timestamp=NOW + place * 5000, step=10)
        self.transactions = [OpenTransactions() for _ in self.logs]
        for log, transactions in zip(self.logs, self.transactions, strict=True):
            transactions.markers.loaded(log.log_end_offset)
        self.is_offline = False
        self.exists = True

    @property
    def version(self) -> int:
        return 0

    def matching(self, regex: str) -> tuple[str, ...]:
        return ("t",) if self.exists and re.fullmatch(regex, "t") else ()

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        return (bytes(16), 2) if self.exists and topic == "t" else None

    def name_of(self, _: bytes) -> str | None:
        return None

    def partition(self, topic: str, index: int) -> Any:
        if topic != "t" or (self.is_offline and index == 1):
            return None
        log = self.logs[index]
        return SimpleNamespace(
            topic_partition=TopicPartition(topic, index),
            log=log,
            log_start_offset=log.log_start_offset,
            last_stable_offset=log.log_end_offset,
            transactions=self.transactions[index],
        )


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return Topics(tmp_path)


@pytest.fixture
async def coordinator() -> GroupCoordinator:
    coordinator = GroupCoordinator(SETTINGS, asyncio.get_running_loop(), FakeTopics(t=2))
    coordinator.elected(0, MemoryLog())
    return coordinator


@pytest.fixture
def sampler(coordinator: GroupCoordinator, topics: Topics) -> GroupSampler:
    return GroupSampler(coordinator.groups_with_offsets, topics, topics.partition)


def commit(coordinator: GroupCoordinator, group_id: str, *offsets: int, topic: str = "t") -> None:
    coordinator.commit_offsets(
        group_id, "", None, -1, [(topic, index, CommittedOffset(at, -1, "", 0)) for index, at in enumerate(offsets)]
    )


def sweep(sampler: GroupSampler, now_ms: int = NOW + 20_000) -> int:
    """Return the number of record times that were looked up."""
    wanted: list[Wanted] = []
    for _ in sampler.sweep(now_ms, wanted):
        pass
    for each, time_ms in look_up_times(wanted):
        each.progress.set_time(each.number, each.offset, time_ms)
    return len(wanted)


def changed(sampler: GroupSampler) -> list[tuple[str, str, bytes]]:
    rows: list[tuple[str, str, bytes]] = []
    for _ in sampler.changed(NOW, rows):
        pass
    return rows


async def test_a_sweep_finds_lag_except_of_offline_partitions_and_missing_topics(
    coordinator: GroupCoordinator, sampler: GroupSampler, topics: Topics
) -> None:
    commit(coordinator, "g", 55, 100)
    assert sweep(sampler) == 1
    behind, read = sampler.standings("g", NOW + 20_000)["t"]
    assert (behind.lag, behind.lag_seconds(NOW + 20_000)) == (45, 14.95)
    assert (read.lag, read.lag_seconds(NOW + 20_000)) == (0, 0.0)
    # The time of the same position is not looked up again.
    assert sweep(sampler) == 0
    topics.is_offline = True
    commit(coordinator, "g", 5, topic="gone")
    sweep(sampler)
    standings = sampler.standings("g", NOW)
    assert [standing.lag for standing in standings["t"]] == [45, None]
    assert [standing.lag for standing in standings["gone"]] == [None]


async def test_only_what_changed_is_written(
    coordinator: GroupCoordinator, sampler: GroupSampler, topics: Topics
) -> None:
    commit(coordinator, "g", 55)
    commit(coordinator, "h", 100)
    sweep(sampler)
    assert [(group, topic) for group, topic, _ in changed(sampler)] == [("g", "t"), ("h", "t")]
    sweep(sampler)
    assert changed(sampler) == []
    commit(coordinator, "h", 99)
    sweep(sampler)
    assert [group for group, _, _ in changed(sampler)] == ["h"]
    append(topics.logs[0], 1)
    sweep(sampler)
    assert [group for group, _, _ in changed(sampler)] == ["g", "h"]
    sampler.write_all_again()
    assert len(changed(sampler)) == 2


async def test_what_could_not_be_written_is_written_again(
    coordinator: GroupCoordinator, sampler: GroupSampler, topics: Topics
) -> None:
    for group in ("a", "skipped", "z"):
        commit(coordinator, group, 55)
    sweep(sampler)
    changed(sampler)
    coordinator.delete_group("z")
    sweep(sampler)
    assert changed(sampler) == [("z", "t", b"")]
    sampler.write_again([("skipped", "t"), ("z", "t")])
    append(topics.logs[0], 1)
    sweep(sampler)
    # What is not in the file comes first.
    assert [group for group, _, _ in changed(sampler)] == ["z", "skipped", "a"]
    sweep(sampler)
    assert changed(sampler) == []


async def test_series_of_deleted_groups_and_topics_are_ended(
    coordinator: GroupCoordinator, sampler: GroupSampler
) -> None:
    commit(coordinator, "g", 55)
    commit(coordinator, "h", 55)
    sweep(sampler)
    changed(sampler)
    coordinator.delete_group("g")
    list(coordinator.topics_deleted(frozenset({"t"})))
    sampler.add_earlier([("before", "t")])
    sweep(sampler)
    assert sorted(changed(sampler)) == [("before", "t", b""), ("g", "t", b""), ("h", "t", b"")]
    assert sampler.standings("g", NOW) == {}
    sweep(sampler)
    assert changed(sampler) == []


async def test_a_failed_lookup_is_repeated(
    coordinator: GroupCoordinator, sampler: GroupSampler, topics: Topics
) -> None:
    commit(coordinator, "g", 55)
    for segment in topics.logs[0].segments.ordered:
        segment._file = None
        segment.path.rename(segment.path.with_suffix(".away"))
    assert sweep(sampler) == 1
    assert next(sampler.standings("g", NOW)["t"]).lag_seconds(NOW) is None
    for segment in topics.logs[0].segments.ordered:
        segment.path.with_suffix(".away").rename(segment.path)
    assert sweep(sampler) == 1
    assert next(sampler.standings("g", NOW + 20_000)["t"]).lag_seconds(NOW + 20_000) == 14.95


def member(coordinator: GroupCoordinator, group_id: str = "g", topics: tuple[str, ...] = ("t",)) -> None:
    fields: dict[str, Any] = dict.fromkeys(("instance_id", "rack_id", "regex", "assignor"))
    fields |= {"member_id": "m", "new_member_id": "", "client_id": "app", "client_host": "/127.0.0.1"}
    beat = ConsumerHeartbeat(
        epoch=0, rebalance_timeout_ms=60_000, topics=topics, owned=frozenset(), provides_member_id=True, **fields
    )
    coordinator.consumer_heartbeat(group_id, beat)


async def test_assigned_partitions_count_without_a_commit(
    coordinator: GroupCoordinator, sampler: GroupSampler, topics: Topics
) -> None:
    member(coordinator, topics=("t", "missing"))
    assert sweep(sampler) == 2
    changed(sampler)
    total = sampler.totals("g")
    assert (total["t"].lag, total["t"].not_committed, list(total)) == (200, 2, ["t"])
    sweep(sampler, NOW + 40_000)
    assert next(sampler.standings("g", NOW + 40_000)["t"]).trend is Trend.STALLED
    append(topics.logs[1], 50)
    sweep(sampler, NOW + 50_000)
    assert [standing.lag for standing in sampler.standings("g", NOW)["t"]] == [100, 150]


async def test_lag_stays_when_the_last_member_leaves(
    coordinator: GroupCoordinator, sampler: GroupSampler, topics: Topics
) -> None:
    member(coordinator)
    commit_as_member = [("t", 0, CommittedOffset(40, -1, "", 0, topic_id=b"t".ljust(16, b"\0")))]
    group = coordinator.group("g")
    assert isinstance(group, ConsumerGroup)
    coordinator.commit_offsets("g", "m", None, group.generation, commit_as_member)
    sweep(sampler)
    before = [standing.lag for standing in sampler.standings("g", NOW)["t"]]
    coordinator.leave("g", [Leaver(member_id="m", instance_id=None, reason="")])
    append(topics.logs[0], 10)
    sweep(sampler)
    assert before == [60, 100]
    assert [standing.lag for standing in sampler.standings("g", NOW)["t"]] == [70, 100]
    coordinator.delete_group("g")
    sweep(sampler)
    assert sampler.standings("g", NOW) == {}
    assert not sampler._reads


async def test_with_reset_to_latest_partitions_without_a_commit_have_no_lag(
    coordinator: GroupCoordinator, topics: Topics
) -> None:
    sampler = GroupSampler(coordinator.groups_with_offsets, topics, topics.partition, Reset.LATEST)
    member(coordinator)
    assert sweep(sampler) == 0
    assert [(standing.position, standing.lag) for standing in sampler.standings("g", NOW)["t"]] == [(100, 0), (100, 0)]


async def test_assignments_of_custom_assignors_count(coordinator: GroupCoordinator) -> None:
    group = Rebalance("g", initial_rebalance_delay_ms=0, now_ms=NOW)
    group.protocol_type = "consumer"
    group.membership.add(
        ClassicMember(
            member_id="m",
            instance_id=None,
            client_id="app",
            client_host="/127.0.0.1",
            session_timeout_ms=1,
            rebalance_timeout_ms=1,
            protocol_type="consumer",
            protocols=(("own", b""),),
            assignment=encode_assignment({"t": [1], "u": [0, 2]}, 1),
        )
    )
    assert reads_of(group) == {"t": frozenset({1}), "u": frozenset({0, 2})}
    group.subscribed_topics = {"t", "v"}
    assert reads_of(group) == {"t": None, "u": frozenset({0, 2}), "v": None}
    group.protocol_type = "connect"
    assert reads_of(group) == {}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


async def test_samples_are_taken_at_the_interval(path: Path, coordinator: GroupCoordinator, topics: Topics) -> None:
    history = GroupHistory(path, interval_ms=5, retention_ms=10**15, max_bytes=10**7)
    commit(coordinator, "g", 55)
    history.start(coordinator, topics, topics.partition)
    while True:
        taken = await history.in_thread(lambda: samples(history.store, "g", "t", 0, 2**60))
        if len(taken.ticks) >= 2:
            break
        await asyncio.sleep(0.001)
    assert len(taken.changes) == 1
    await history.stop()
    history.store.close()


def history_of(coordinator: GroupCoordinator, sampler: GroupSampler, path: Path, max_bytes: int) -> GroupHistory:
    """Return a history that samples only when it is told to."""
    history = GroupHistory(path, interval_ms=10**6, retention_ms=10**15, max_bytes=max_bytes)
    history.coordinator, history.sampler = coordinator, sampler
    return history


async def test_idle_groups_are_written_to_a_new_file(
    path: Path, coordinator: GroupCoordinator, sampler: GroupSampler
) -> None:
    history = history_of(coordinator, sampler, path, max_bytes=10**7)
    commit(coordinator, "idle", 55)
    await history.sample()
    history.store.close()
    path.write_bytes(b"something else" * 1000)
    await history.sample()
    assert history.store.series() == []
    await history.sample()
    assert history.store.series() == [("idle", "t")]
    await history.stop()


async def test_idle_groups_that_the_file_lost_are_written_again(
    path: Path, coordinator: GroupCoordinator, sampler: GroupSampler
) -> None:
    history = history_of(coordinator, sampler, path, max_bytes=10**7)
    commit(coordinator, "idle", 55)
    await history.sample()
    history.store._write(pruning._drop_series)
    history.store._ids.clear()
    await history.sample()
    assert history.store.series() == []
    await history._touch()
    await history.sample()
    assert history.store.series() == [("idle", "t")]
    await history.stop()


async def test_a_state_without_room_is_written_when_there_is_room(
    path: Path, coordinator: GroupCoordinator, sampler: GroupSampler
) -> None:
    history = history_of(coordinator, sampler, path, max_bytes=2**18)
    full = [(f"{number}-{'g' * 400}", "t") for number in range(100)]
    assert history.store.write_sample(NOW, [(*key, b"x") for key in full])
    commit(coordinator, "idle", 55)
    commit(coordinator, "i" * 480, 55)
    await history.sample()
    assert history.store.topics_of("i" * 480) == []
    history.store.write_sample(NOW + 1, [(*key, b"") for key in full])
    await history.sample()
    assert history.store.topics_of("i" * 480) == ["t"]
    await history.stop()


async def test_a_sweep_pauses_between_groups_and_within_large_ones(
    sampler: GroupSampler, coordinator: GroupCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.monitoring.groups.sampler._PARTITIONS_PER_STEP", 2)
    for number in range(5):
        commit(coordinator, f"g{number}", 10, 20)
    wanted: list[Wanted] = []
    assert len(list(sampler.sweep(NOW, wanted))) >= 10
    assert len(wanted) == 10


async def test_sampling_one_group_during_a_sweep_does_not_affect_others(
    sampler: GroupSampler, coordinator: GroupCoordinator, topics: Topics
) -> None:
    for group in ("a", "b"):
        commit(coordinator, group, 10, 20)
    sweep(sampler)
    append(topics.logs[0], 10, timestamp=NOW)
    wanted: list[Wanted] = []
    steps = sampler.sweep(NOW, wanted)
    next(steps)
    next(steps)
    for _ in sampler.sweep_one(*coordinator.groups_with_offsets()[0], NOW, wanted):
        pass
    for _ in steps:
        pass
    assert [next(sampler.standings(name, NOW)["t"]).lag for name in ("a", "b")] == [100, 100]
    changed(sampler)
    assert [sampler.totals(name)["t"].lag for name in ("a", "b")] == [180, 180]
