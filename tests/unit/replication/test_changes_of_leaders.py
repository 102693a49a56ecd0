"""A partition whose leadership this broker takes over from another one."""

from pathlib import Path
from uuid import UUID

import pytest

from headrace.replication.following.partition import FollowedPartition
from headrace.replication.leading.peers import Peers
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import PartitionState, TopicPartition
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch

NOW = 1_700_000_000_000
FOLLOWING = PartitionState("t", UUID(int=5), 0, 2, 3, (2, 1), (2, 1), is_new=True)
"""The partition state while broker 2 leads."""


class _NoController:
    def submit(self, *_: object) -> None: ...


@pytest.fixture
def replicas(tmp_path: Path) -> ReplicaManager:
    replicas = ReplicaManager(LogDirs.open([tmp_path], broker_id=1), lambda _: LogConfig())
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
