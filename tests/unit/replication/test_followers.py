"""A partition with followers, over a real log: high watermark, ISR, min ISR, and the requests that wait for them."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.leading.followers import Followers
from headrace.replication.leading.isr_changes import Answer, IsrChange
from headrace.replication.leading.leader_state import Committed
from headrace.replication.leading.peers import Peers
from headrace.replication.partition import Partition
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.records import RecordData, build_batch

NOW = 1_700_000_000_000
TP = TopicPartition("t", 0)
RECORD = build_batch([RecordData(None, b"v", NOW)])
MAX_LAG_MS = 100


class State(NamedTuple):
    leader_epoch: int = 0
    partition_epoch: int = 0
    replicas: tuple[int, ...] = (1, 2, 3)
    isr: tuple[int, ...] = (1, 2, 3)
    adding_replicas: tuple[int, ...] = ()


class Setup:
    """Broker 1 leads with followers 2 and 3. It is its own controller: `sent` has the changes to answer."""

    def __init__(self, directory: Path, **config: object) -> None:
        self.now_ms = 1000
        self.sent: list[tuple[IsrChange, Callable[[Answer], None]]] = []
        self.config = LogConfig(min_insync_replicas=2, **config)  # type: ignore[arg-type]
        self.replicas = ReplicaManager(LogDirs.open([directory], broker_id=1), lambda _: self.config)
        self.partition = self.replicas.become_leader(TP, UUID(int=5), 0)
        self.peers = Peers(1, lambda _: True, lambda: MAX_LAG_MS, lambda: self.now_ms, self)
        self.lead()

    def lead(self, **changes: object) -> bool:
        return self.partition.lead(State(**changes), self.peers)  # type: ignore[arg-type]

    @property
    def followers(self) -> Followers:
        assert self.partition.followers is not None
        return self.partition.followers

    def submit(self, change: IsrChange, done: Callable[[Answer], None]) -> None:
        self.sent.append((change, done))

    def answer(self, error: ErrorCode | None = None) -> None:
        change, done = self.sent.pop(0)
        proposal = change.proposal
        members = tuple(sorted(proposal.members))
        done(error or Committed(proposal.leader_epoch, proposal.partition_epoch + 1, members))

    def append(self, acks: int = -1) -> int:
        return self.partition.append_as_leader(RECORD, now_ms=NOW, acks=acks).last_offset + 1

    def fetch(self, *followers: int, offset: int | None = None) -> None:
        for follower in followers:
            self.partition.fetched_by(follower, self.partition.log_end_offset if offset is None else offset, 0, -1)

    def lag(self, *followers: int) -> None:
        """Make these followers lag."""
        self.now_ms += MAX_LAG_MS + 1
        self.fetch(*({2, 3} - set(followers)))
        self.followers.check()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    setup = Setup(tmp_path)
    yield setup
    setup.replicas.close()


def refused(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return caught.value.code


def test_records_are_visible_when_all_in_sync_replicas_have_them(setup: Setup) -> None:
    setup.append()
    setup.fetch(2)
    assert (setup.partition.high_watermark, setup.partition.log_end_offset) == (0, 1)
    assert setup.partition.read(0, 1000, read_committed=False, min_one_batch=True) is None
    setup.fetch(3)
    assert setup.partition.high_watermark == 1


def test_followers_read_to_the_end_of_the_log(setup: Setup) -> None:
    setup.append()
    part = setup.partition.read_as_follower(2, 0, 1000, min_one_batch=True)
    assert part is not None
    assert part.size == len(RECORD)


def test_only_replicas_may_fetch_as_followers(setup: Setup) -> None:
    partition = setup.partition
    assert refused(lambda: setup.fetch(9)) is ErrorCode.unknown_leader_epoch
    assert refused(lambda: partition.read_as_follower(9, 0, 9, min_one_batch=True)) is ErrorCode.unknown_leader_epoch
    setup.lead(partition_epoch=1, replicas=(1,), isr=(1,))
    assert refused(lambda: setup.fetch(2)) is ErrorCode.unknown_leader_epoch


def test_a_partition_reports_the_growth_of_its_log_to_followers_at_once(setup: Setup) -> None:
    seen: list[tuple[str, int]] = []
    setup.partition.growth.add(lambda _, size: seen.append(("visible", size)))
    setup.partition.log_growth.add(lambda _, size: seen.append(("log", size)))
    setup.append()
    assert seen == [("log", len(RECORD))]
    setup.fetch(2, 3)
    assert [kind for kind, _ in seen] == ["log", "visible"]


def test_acks_all_is_refused_under_min_isr(setup: Setup) -> None:
    setup.append()
    setup.lag(2, 3)
    setup.answer()
    assert setup.partition.isr == (1,)
    assert refused(setup.append) is ErrorCode.not_enough_replicas
    assert setup.append(acks=1) == 2
    assert setup.partition.high_watermark == 0


def test_a_follower_leaves_and_joins_the_isr_with_the_answers(setup: Setup) -> None:
    setup.append()
    setup.lag(3)
    assert (setup.partition.isr, setup.partition.high_watermark) == ((1, 2, 3), 0)
    setup.answer()
    assert (setup.partition.isr, setup.partition.high_watermark) == ((1, 2), 1)
    assert setup.partition.partition_epoch == 1
    setup.fetch(3)
    setup.answer()
    assert setup.partition.isr == (1, 2, 3)


def test_the_high_watermark_does_not_wait_for_a_follower_that_was_refused(setup: Setup) -> None:
    setup.lead(isr=(1, 2), partition_epoch=1)
    setup.fetch(3)  # broker 3 stops: the controller will not let it join
    setup.append()
    setup.now_ms += MAX_LAG_MS + 1
    setup.fetch(2)
    assert setup.partition.high_watermark == 0
    setup.answer(ErrorCode.ineligible_replica)
    assert setup.partition.high_watermark == 1


def test_an_unexpected_error_sends_the_change_again(setup: Setup) -> None:
    setup.append()
    setup.lag(3)
    setup.answer(ErrorCode.unknown_server_error)
    assert len(setup.sent) == 1
    setup.answer(ErrorCode.ineligible_replica)
    assert not setup.sent
    setup.followers.check()
    assert len(setup.sent) == 1


def test_answers_for_a_partition_that_is_gone_are_ignored(setup: Setup) -> None:
    setup.append()
    setup.lag(3)
    setup.partition.fail_waits(KafkaError(ErrorCode.not_leader_or_follower))
    setup.answer()
    assert setup.partition.isr == (1, 2, 3)


def test_an_older_state_is_ignored(setup: Setup) -> None:
    assert setup.lead(leader_epoch=2, partition_epoch=5)
    assert not setup.lead(leader_epoch=1, partition_epoch=4, isr=(1,))
    assert (setup.partition.leader_epoch, setup.partition.partition_epoch, setup.partition.isr) == (2, 5, (1, 2, 3))


def test_a_new_leader_epoch_begins_at_the_log_end_even_without_records(setup: Setup) -> None:
    setup.append()
    setup.lead(leader_epoch=4, partition_epoch=1)
    assert setup.partition.log.leader_epochs.entries[-1] == (4, 1)
    assert setup.partition.end_offset_for_epoch(3) == (0, 1)


def test_a_leader_that_is_the_only_replica_waits_until_the_others_have_left_the_isr(setup: Setup) -> None:
    setup.append()
    setup.lead(replicas=(1,), partition_epoch=1)
    assert setup.partition.high_watermark == 0
    setup.lead(replicas=(1,), isr=(1,), partition_epoch=2)
    assert (setup.partition.high_watermark, setup.partition.followers) == (1, None)
    setup.append()
    assert setup.partition.high_watermark == 2


def test_the_leader_counts_after_its_flush(tmp_path: Path) -> None:
    setup = Setup(tmp_path, flush_messages=1)
    flushes: list[Partition] = []

    class Completions:
        def flush(self, partition: Partition) -> None:
            flushes.append(partition)

        def advanced(self, partition: Partition) -> None: ...
        def refuse(self, partition: Partition, error: KafkaError) -> None: ...

    setup.partition.completions = Completions()
    setup.append()
    setup.fetch(2, 3)
    assert setup.partition.high_watermark == 0
    setup.partition.log.flusher.flush()
    setup.partition.flushed_to(1)
    assert setup.partition.high_watermark == 1
    setup.replicas.close()


# Requests that wait


@pytest.fixture
async def purgatory(setup: Setup) -> Purgatory:
    purgatory = Purgatory(asyncio.get_running_loop())
    setup.partition.completions = purgatory
    return purgatory


async def test_acks_all_is_answered_within_the_fetch_that_commits(setup: Setup, purgatory: Purgatory) -> None:
    completions = [purgatory.completion(setup.partition, setup.append(), -1, timeout_s=10) for _ in range(2)]
    answered: list[object] = []
    for completion in completions:
        assert completion is not None
        completion.add_done_callback(answered.append)
    for replica in (2, 3):
        setup.fetch(replica)
    assert answered == completions


async def test_acks_one_is_answered_at_once(setup: Setup, purgatory: Purgatory) -> None:
    assert purgatory.completion(setup.partition, setup.append(acks=1), 1, timeout_s=10) is None


async def test_acks_all_times_out_without_its_followers(setup: Setup, purgatory: Purgatory) -> None:
    completion = purgatory.completion(setup.partition, setup.append(), -1, timeout_s=0)
    assert completion is not None
    error = await completion
    assert error is not None
    assert error.code is ErrorCode.request_timed_out


async def test_acks_all_fails_if_the_isr_is_too_small_when_the_records_are_committed(
    setup: Setup, purgatory: Purgatory
) -> None:
    setup.lag(3)
    setup.append()
    setup.lag(3)
    setup.answer()
    end = setup.append()
    completion = purgatory.completion(setup.partition, end, -1, timeout_s=10)
    assert completion is not None
    # Only a change of the setting between the two checks of one fetch leads here.
    setup.partition.log.configure(LogConfig(min_insync_replicas=3))
    setup.partition.advance_high_watermark(end)
    error = completion.result()
    assert error is not None
    assert error.code is ErrorCode.not_enough_replicas_after_append
