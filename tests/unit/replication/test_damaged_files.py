"""Damage that readers find is logged for the operator, because a Fetch reply has no text."""

from pathlib import Path

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.replication.replica_manager import ReplicaManager
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from tests.unit.storage.logs import append, open_log


def test_a_truncated_index_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = open_log(tmp_path / "t-0")
    for _ in range(40):
        append(log, 2)
    segment, following = log.segments.ordered[1:3]
    segment.index.path.write_bytes(b"")
    middle = (segment.base_offset + following.base_offset) // 2
    replicas = ReplicaManager(LogDirs.open([tmp_path / "data"], broker_id=1), lambda _: LogConfig())

    for _ in range(2):
        with pytest.raises(KafkaError) as raised:
            log.reader.read(middle, 1000, upto_offset=80)
        assert raised.value.code is ErrorCode.kafka_storage_error
        replicas.report_damage(raised.value)

    (line,) = caplog.messages
    assert str(segment.index.path) in line
    log.close()
    replicas.close()
