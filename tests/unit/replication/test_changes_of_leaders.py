"""A partition whose leadership this broker takes over from another one."""

from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest

from headrace.replication.following.partition import FollowedPartition
from headrace.replication.leading.peers import Peers
from headrace.replication.replica_manager import ReplicaManager
from headrace.slices import run_all
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.storage.log.flusher import LogFlusher
from headrace.storage.log.log import Log
from headrace.types import PartitionState, TopicPartition
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch

NOW = 1_700_000_000_000
FOLLOWING = PartitionState("t", UUID(int=5), 0, 2, 3, (2, 1), (2, 1), is_new=True)
"""The partition state while broker 2 leads."""


FLUSHING: Final = LogConfig(flush_ms=0)


class _NoController:
    def submit(self, *_: object) -> None: ...


@pytest.fixture
def configs() -> dict[str, LogConfig]:
    """The configs of the topics that do not have the default."""
    return {}


@pytest.fixture
def replicas(tmp_path: Path, configs: dict[str, LogConfig]) -> ReplicaManager:
    replicas = ReplicaManager(LogDirs.open([tmp_path], broker_id=1), lambda topic: configs.get(topic, LogConfig()))
    replicas.peers = Peers(1, lambda _: True, lambda: 100, lambda: 1000, _NoController())
    return replicas


@pytest.fixture
def followed(replicas: ReplicaManager) -> FollowedPartition:
    replicas.open(TopicPartition("t", 0), FOLLOWING.topic_id, is_new=True)
    return replicas.follow(FOLLOWING)


def test_open_transactions_of_a_new_leader_are_no_reason_for_a_warning(
    replicas: ReplicaManager, followed: FollowedPartition, caplog: pytest.LogCaptureFixture
) -> None:
    batch = build_batch(
        [RecordData(None, b"v", NOW)],
        leader_epoch=3,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        attributes=TRANSACTIONAL_FLAG,
    )
    followed.append_fetched(memoryview(batch), NOW)

    led = replicas.lead(FOLLOWING._replace(leader=1, leader_epoch=4))

    assert led.transactions.first_offset == 0
    assert not caplog.records


def is_flushed_when_due(replicas: ReplicaManager) -> bool:
    """Lead t-0, append a record, and flush the logs whose `flush.ms` has passed. Return True if this log was one."""
    led = replicas.lead(FOLLOWING._replace(leader=1, leader_epoch=4))
    led.append_as_leader(build_batch([RecordData(None, b"v", NOW)]), now_ms=NOW)
    replicas.flush_due()
    return led.log.flusher.recovery_point == 1


def test_flush_ms_that_changes_between_opening_and_leading_is_honoured(
    replicas: ReplicaManager, configs: dict[str, LogConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_log = replicas._open_log

    def opening(*args: Any, **options: Any) -> Log:
        opened = open_log(*args, **options)
        configs["t"] = FLUSHING
        run_all(replicas.reconfigure({"t"}))
        return opened

    monkeypatch.setattr(replicas, "_open_log", opening)
    replicas.open(TopicPartition("t", 0), FOLLOWING.topic_id, is_new=True)
    assert is_flushed_when_due(replicas)


def test_flush_ms_that_changes_while_a_log_is_kept_is_honoured(
    replicas: ReplicaManager, followed: FollowedPartition, configs: dict[str, LogConfig]
) -> None:
    replicas.withdraw([followed.topic_partition])
    configs["t"] = FLUSHING
    run_all(replicas.reconfigure({"t"}))
    replicas.open(followed.topic_partition, FOLLOWING.topic_id, is_new=False)
    assert is_flushed_when_due(replicas)


def test_flush_ms_is_honoured_if_other_logs_are_flushed_between_opening_and_leading(
    replicas: ReplicaManager, configs: dict[str, LogConfig]
) -> None:
    configs["t"] = FLUSHING
    replicas.open(TopicPartition("t", 0), FOLLOWING.topic_id, is_new=True)
    replicas.flush_due()
    assert is_flushed_when_due(replicas)


def test_flush_ms_that_changes_during_a_flush_is_honoured(
    replicas: ReplicaManager, configs: dict[str, LogConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas.become_leader(TopicPartition("t", 0), FOLLOWING.topic_id, 3)
    for config in (FLUSHING, LogConfig()):
        configs["t"] = config
        run_all(replicas.reconfigure({"t"}))
    flush_due = LogFlusher.flush_due

    def flushing(flusher: LogFlusher, now_ms: int) -> bool:
        configs["t"] = FLUSHING
        run_all(replicas.reconfigure({"t"}))
        return flush_due(flusher, now_ms)

    with monkeypatch.context() as patch:
        patch.setattr(LogFlusher, "flush_due", flushing)
        replicas.flush_due()
    assert is_flushed_when_due(replicas)
