"""Retention of many logs, in steps."""

from pathlib import Path
from uuid import UUID

from headrace.replication.replica_manager import ReplicaManager
from headrace.slices import run_all
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.records import RecordData, build_batch

NOW = 1_700_000_000_000


def test_a_step_deletes_the_old_records_of_one_log_that_is_still_hosted(tmp_path: Path) -> None:
    replicas = ReplicaManager(LogDirs.open([tmp_path], broker_id=0), lambda _: LogConfig(retention_ms=5))
    led = []
    for number in range(3):
        partition = replicas.become_leader(TopicPartition("t", number), UUID(int=5), 0)
        partition.append_as_leader(build_batch([RecordData(None, b"v", NOW)]), now_ms=NOW)
        led.append(partition)

    steps = replicas.apply_retention()
    next(steps)
    assert [partition.log_start_offset for partition in led] == [1, 0, 0]
    replicas.withdraw([TopicPartition("t", 1)])
    run_all(steps)
    assert [partition.log_start_offset for partition in led] == [1, 0, 1]
