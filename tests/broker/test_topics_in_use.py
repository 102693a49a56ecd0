"""Topics and segments removed while clients use them."""

import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch, iter_records
from tests.support.topic_requests import fetched, produce
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker({"log.segment.delete.delay.ms": "0", "log.segment.bytes": "1048576"}, data=tmp_path) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap) as client:
        yield client


def create(client: WireClient, name: str = "t") -> uuid.UUID:
    new = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    (created,) = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [new], "timeout": 9000, "validate_only": False})[
        "topics"
    ]
    assert created["error_code"] == "none"
    topic_id: uuid.UUID = created["topic_id"]
    return topic_id


def delete(client: WireClient, name: str = "t") -> None:
    answer = client.ask(ApiKey.DELETE_TOPICS, 4, {"topic_names": [name], "timeout": 9000})
    assert answer["responses"][0]["error_code"] == "none"


def fetch(topic_id: uuid.UUID, *, session: tuple[int, int] = (0, -1), max_wait: int = 0, offset: int = 0) -> Any:
    partition_request = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 25}
    return {
        "max_wait": max_wait,
        "min_bytes": 1,
        "max_bytes": 1 << 25,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{"topic_id": topic_id, "partitions": [partition_request]}],
        "forgotten_topics_data": [],
    }


def write_by_id(client: WireClient, topic_id: uuid.UUID) -> str:
    partition = {"index": 0, "records": build_batch([RecordData(None, b"x", 1)])}
    message = {"acks": 1, "timeout": 9000, "topic_data": [{"topic_id": topic_id, "partition_data": [partition]}]}
    code: str = client.ask(ApiKey.PRODUCE, 13, message)["responses"][0]["partition_responses"][0]["error_code"]
    return code


def test_a_waiting_fetch_ends_when_its_topic_is_deleted(broker: Broker, client: WireClient) -> None:
    topic_id = create(client)
    with WireClient(broker.bootstrap) as waiting:
        waiting.send(ApiKey.FETCH, 13, fetch(topic_id, max_wait=25_000))
        begin = time.monotonic()
        delete(client)
        answer = waiting.receive(ApiKey.FETCH, 13)
        assert answer["responses"][0]["partitions"][0]["error_code"] == "unknown_topic_id"
        assert time.monotonic() - begin < 15


def test_clients_of_a_deleted_topic_do_not_reach_its_namesake(client: WireClient) -> None:
    old = create(client)
    assert write_by_id(client, old) == "none"
    session = client.ask(ApiKey.FETCH, 13, fetch(old, session=(0, 0)))["session_id"]
    delete(client)
    new = create(client)
    assert old != new
    assert write_by_id(client, old) == "unknown_topic_id"
    answer = client.ask(ApiKey.FETCH, 13, fetch(old, session=(session, 1), offset=1))
    assert answer["responses"][0]["partitions"][0]["error_code"] == "unknown_topic_id"
    assert write_by_id(client, new) == "none"
    assert [record.offset for record in iter_records(fetched(client, "t", 0)["records"])] == [0]


def test_a_topic_is_deleted_and_recreated_under_load(
    broker: Broker, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    stop = threading.Event()
    codes: set[str] = set()

    def use(write: bool) -> None:
        with WireClient(broker.bootstrap) as user:
            while not stop.is_set():
                codes.add(produce(user, "t", 0) if write else fetched(user, "t", 0)["error_code"])

    users = [threading.Thread(target=use, args=(write,)) for write in (True, True, False)]
    for user in users:
        user.start()
    for _ in range(25):
        create(client)
        delete(client)
    create(client)
    stop.set()
    for user in users:
        user.join()
    assert codes <= {"none", "unknown_topic_or_partition"}
    assert produce(client, "t", 0) == "none"
    wait_for(lambda: not list(broker.data.glob("*-delete")), "removal of the deleted files")
    assert [record.levelname for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")] == []


def test_a_slow_consumer_still_gets_removed_segments(broker: Broker, client: WireClient) -> None:
    topic_id = create(client)
    records = [RecordData(None, bytes([number]) * 900_000, round(time.time() * 1000)) for number in range(12)]
    for record in records:
        partition = {"index": 0, "records": build_batch([record])}
        message = {"acks": 1, "timeout": 9000, "topic_data": [{"topic_id": topic_id, "partition_data": [partition]}]}
        answer = client.ask(ApiKey.PRODUCE, 13, message)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == "none"
    slow = [WireClient(broker.bootstrap) for _ in records]
    for offset, consumer in enumerate(slow):
        consumer.send(ApiKey.FETCH, 13, fetch(topic_id, offset=offset))
    wait_for(lambda: all(consumer.has_answer() for consumer in slow), "the beginning of every answer")
    delete_all = {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": -1}]}], "timeout": 9000}
    assert client.ask(ApiKey.DELETE_RECORDS, 2, delete_all)["topics"][0]["partitions"][0]["error_code"] == "none"
    wait_for(lambda: len(list((broker.data / "t-0").glob("*.deleted"))) == 0, "removal of the files")
    for offset, consumer in enumerate(slow):
        answer = consumer.receive(ApiKey.FETCH, 13)["responses"][0]["partitions"][0]
        first = next(iter_records(answer["records"]))
        assert (first.offset, first.value) == (offset, records[offset].value)
        consumer.close()
