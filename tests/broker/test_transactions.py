"""The transaction coordinator over the wire."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headrace import clock
from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch
from tests.support.topics import create_topic
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

NONE = "none"
_clients: list[WireClient] = []


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        create_topic(broker.bootstrap, "t", 2)
        yield broker


def connect(broker: Broker) -> WireClient:
    _clients.append(WireClient(broker.bootstrap))
    return _clients[-1]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


class Coordinator:
    """A client for one transactional id."""

    def __init__(self, broker: Broker, name: str = "id") -> None:
        self.client = connect(broker)
        self.name = name
        self.identity = (-1, -1)
        found = self.client.ask(ApiKey.FIND_COORDINATOR, 6, {"key_type": 1, "coordinator_keys": [name]})
        assert found["coordinators"][0]["error_code"] == NONE

    def init(self, *, timeout_ms: int = 60_000) -> Any:
        def ask() -> Any:
            answer = self.client.ask(
                ApiKey.INIT_PRODUCER_ID,
                5,
                {"transactional_id": self.name, "transaction_timeout": timeout_ms},
            )
            retriable = ("concurrent_transactions", "coordinator_load_in_progress")
            return None if answer["error_code"] in retriable else answer

        answer = wait_for(ask, "an answer to InitProducerId")
        self.identity = answer["producer_id"], answer["producer_epoch"]
        return answer["error_code"]

    def add(self, *indexes: int, topic: str = "t") -> dict[int, Any]:
        message = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.identity[0],
            "v3_and_below_producer_epoch": self.identity[1],
            "v3_and_below_topics": [{"name": topic, "partitions": indexes}],
        }
        answer = self.client.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, message)
        (result,) = answer["results_by_topic_v3_and_below"]
        return {item["partition_index"]: item["partition_error_code"] for item in result["results_by_partition"]}

    def produce(self, *, version: int) -> Any:
        batch = build_batch(
            [RecordData(None, b"x", clock.now_ms())],
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=0,
            attributes=TRANSACTIONAL_FLAG,
        )
        topic_data = [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}]
        message = {"transactional_id": self.name, "acks": -1, "timeout": 1000, "topic_data": topic_data}
        answer = self.client.ask(ApiKey.PRODUCE, version, message)
        return answer["responses"][0]["partition_responses"][0]["error_code"]


def test_an_unknown_partition_prevents_adding_the_others(broker: Broker) -> None:
    producer = Coordinator(broker)
    producer.init()
    assert producer.add(0, 7) == {0: "operation_not_attempted", 7: "unknown_topic_or_partition"}
    assert producer.add(0, topic="__transaction_state") == {0: "topic_authorization_failed"}


def test_several_transactions_are_verified_in_one_request(broker: Broker) -> None:
    producer = Coordinator(broker)
    producer.init()
    producer.add(0)
    message = {
        "transactional_id": "id",
        "producer_id": producer.identity[0],
        "producer_epoch": producer.identity[1],
        "verify_only": True,
        "topics": [{"name": "t", "partitions": [0, 1]}],
    }
    answer = producer.client.ask(
        ApiKey.ADD_PARTITIONS_TO_TXN, 5, {"transactions": [message, {**message, "transactional_id": "other"}]}
    )
    codes = [
        [item["partition_error_code"] for item in result["topic_results"][0]["results_by_partition"]]
        for result in answer["results_by_transaction"]
    ]
    unknown = "invalid_producer_id_mapping"
    assert codes == [[NONE, "transaction_abortable"], [unknown, unknown]]


def _add_partition(producer: Coordinator) -> bool:
    return producer.add(0) == {0: NONE}


def _produce_with_version_2(producer: Coordinator) -> bool:
    return bool(producer.produce(version=12) == NONE)


def _add_offsets(producer: Coordinator) -> bool:
    producer_id, epoch = producer.identity
    message = {
        "transactional_id": producer.name,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "group_id": "g",
    }
    return bool(producer.client.ask(ApiKey.ADD_OFFSETS_TO_TXN, 3, message)["error_code"] == NONE)


@pytest.mark.parametrize("begin", [_add_partition, _produce_with_version_2, _add_offsets])
def test_a_timed_out_transaction_is_logged_with_a_client_that_began_it_after_a_restart(
    tmp_path: Any, caplog: pytest.LogCaptureFixture, begin: Callable[[Coordinator], bool]
) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    with Broker(settings, data=tmp_path) as broker:
        create_topic(broker.bootstrap, "t")
        producer = Coordinator(broker)
        assert producer.init(timeout_ms=1) == NONE
        identity = producer.identity
    with Broker(settings, data=tmp_path) as broker:
        producer = Coordinator(broker)
        producer.identity = identity
        wait_for(lambda: begin(producer), "a transaction after the restart")
        wait_for(lambda: "transactional id id (client wire at 127.0.0.1, producer " in caplog.text, "the log line")


def test_a_marker_without_a_producer_is_refused(broker: Broker) -> None:
    marker = {
        "producer_id": -1,
        "producer_epoch": 0,
        "transaction_result": True,
        "coordinator_epoch": 0,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    answer = connect(broker).ask(ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]})
    assert answer["markers"][0]["topics"][0]["partitions"][0]["error_code"] == "unknown_server_error"
