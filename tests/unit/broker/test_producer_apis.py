from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.producers import ProducersApi
from headrace.errors import ErrorCode
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import RequestContext
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.types import PartitionState, TopicPartition
from headrace.wire.apis import ApiKey, response_reader, schema
from headrace.wire.records import RecordData, build_batch
from tests.unit.broker.asking import client_at
from tests.unit.storage.logs import NOW

PARTITIONS = 3
PRODUCERS = 200


class Replicas:
    """Replicas with the same producers in every partition."""

    def __init__(self) -> None:
        self.calls = 0

    def readable(self, *_: object) -> Any:
        return self

    def packed_producers(self) -> list[bytes]:
        self.calls += 1
        return [ProducerEntry(number, 0, number, number, 0, 1, -1, -1).packed() for number in range(PRODUCERS)]


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


def described(replicas: Replicas | ReplicaManager, partitions: range = range(PARTITIONS)) -> Any:
    context = RequestContext(int(ApiKey.DESCRIBE_PRODUCERS), 0, 1, "me", client_at())
    topic = SimpleNamespace(name="t", topic_id=UUID(int=1), partition_indexes=partitions)
    api = ProducersApi(replicas, None, None)  # type: ignore[arg-type]
    return api.describe_producers(context, SimpleNamespace(topics=[topic]))


def test_producers_are_looked_up_while_the_response_is_encoded(replicas: Replicas) -> None:
    reply = described(replicas)
    assert replicas.calls == 0

    out = bytearray()
    steps = schema(ApiKey.DESCRIBE_PRODUCERS, 0).encode_in_steps(out, reply)
    assert sum(1 for _ in steps) > PARTITIONS * PRODUCERS
    response, size = response_reader(ApiKey.DESCRIBE_PRODUCERS, 0)(bytes(out), 0)

    assert size == len(out)
    (topic,) = response.topics
    assert [len(partition.active_producers) for partition in topic.partitions] == [PRODUCERS] * PARTITIONS
    assert [producer.last_sequence for producer in topic.partitions[0].active_producers] == list(range(PRODUCERS))


def test_producers_of_led_and_followed_partitions_are_described(tmp_path: Path) -> None:
    replicas = ReplicaManager(LogDirs.open([tmp_path], broker_id=1), lambda _: LogConfig())
    data = build_batch([RecordData(b"k", b"v", NOW)], producer_id=4, producer_epoch=0, base_sequence=0)
    for index in (0, 1):
        partition = replicas.become_leader(TopicPartition("t", index), UUID(int=1), 0)
        partition.append_as_leader(data, now_ms=NOW)
    replicas.follow(PartitionState("t", UUID(int=1), 1, 2, 1, (1, 2), (2,), is_new=False))

    out = bytearray()
    schema(ApiKey.DESCRIBE_PRODUCERS, 0).encode_response(out, described(replicas, range(3)))
    response, _ = response_reader(ApiKey.DESCRIBE_PRODUCERS, 0)(bytes(out), 0)

    (topic,) = response.topics
    found = [[producer.producer_id for producer in partition.active_producers] for partition in topic.partitions]
    assert found == [[4], [4], []]
    errors = [partition.error_code for partition in topic.partitions]
    assert errors == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    replicas.close()
