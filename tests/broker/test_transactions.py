"""The transaction coordinator over the wire."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import clock
from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch
from tests.clients.drivers.java_driver import run_tool
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

NONE = "none"
_clients: list[WireClient] = []


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        create_topic(broker, 2)
        yield broker


def connect(broker: Broker) -> WireClient:
    _clients.append(WireClient(broker.bootstrap))
    return _clients[-1]


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    while _clients:
        _clients.pop().close()


def create_topic(broker: Broker, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("t", partitions)])["t"].result(20)


class Coordinator:
    """A client for one transactional id, with transaction version 1 or 2."""

    def __init__(self, broker: Broker, name: str = "id", *, version: int = 2) -> None:
        self.client = connect(broker)
        self.name = name
        self.version = version
        self.identity = (-1, -1)
        found = self.client.ask(ApiKey.FIND_COORDINATOR, 6, {"key_type": 1, "coordinator_keys": [name]})
        assert found["coordinators"][0]["error_code"] == NONE

    def init(self, expected: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000) -> Any:
        def ask() -> Any:
            answer = self.client.ask(
                ApiKey.INIT_PRODUCER_ID,
                5,
                {
                    "transactional_id": self.name,
                    "transaction_timeout": timeout_ms,
                    "producer_id": expected[0],
                    "producer_epoch": expected[1],
                },
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

    def end(self, *, commit: bool = True) -> Any:
        message = {
            "transactional_id": self.name,
            "producer_id": self.identity[0],
            "producer_epoch": self.identity[1],
            "committed": commit,
        }
        answer = self.client.ask(ApiKey.END_TXN, 5 if self.version >= 2 else 4, message)
        if answer["error_code"] == NONE and self.version >= 2:
            self.identity = answer["producer_id"], answer["producer_epoch"]
        return answer["error_code"]

    def state(self) -> Any:
        answer = self.client.ask(ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [self.name]})
        return answer["transaction_states"][0]


@pytest.mark.parametrize(("version", "epoch"), [(1, 0), (2, 1)])
@pytest.mark.parametrize(("commit", "state"), [(True, "CompleteCommit"), (False, "CompleteAbort")])
def test_a_transaction_ends(broker: Broker, version: int, epoch: int, commit: bool, state: str) -> None:
    producer = Coordinator(broker, version=version)
    assert producer.init() == NONE
    assert producer.add(0, 1) == {0: NONE, 1: NONE}
    assert producer.state()["transaction_state"] == "Ongoing"
    assert producer.end(commit=commit) == NONE
    assert producer.identity[1] == epoch
    # On a busy machine, writing the markers can take more than one slice.
    wait_for(lambda: producer.state()["transaction_state"] == state, f"the state {state}")


def test_a_successor_fences(broker: Broker) -> None:
    first, second = Coordinator(broker), Coordinator(broker)
    first.init()
    first.add(0)
    assert second.init() == NONE
    assert first.add(1) == {1: "producer_fenced"}
    assert first.end() == "producer_fenced"


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


def test_a_transaction_is_aborted_after_its_timeout(tmp_path: Any) -> None:
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "50"}
    with Broker(settings) as broker:
        create_topic(broker, 1)
        producer = Coordinator(broker)
        producer.init(timeout_ms=1)
        producer.add(0)
        wait_for(lambda: producer.state()["transaction_state"] == "CompleteAbort", "the abort")
        assert producer.end() == "invalid_txn_state"
        assert producer.end(commit=False) == NONE


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
        create_topic(broker, 1)
        producer = Coordinator(broker)
        assert producer.init(timeout_ms=1) == NONE
        identity = producer.identity
    with Broker(settings, data=tmp_path) as broker:
        producer = Coordinator(broker)
        producer.identity = identity
        wait_for(lambda: begin(producer), "a transaction after the restart")
        wait_for(lambda: "transactional id id (client wire at 127.0.0.1, producer " in caplog.text, "the log line")


def test_transactions_are_listed(broker: Broker) -> None:
    producer = Coordinator(broker)
    producer.init()
    producer.add(0)

    def listed(**filters: Any) -> list[str]:
        message = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_filter": -1,
            "transactional_id_pattern": None,
        }
        answer = producer.client.ask(ApiKey.LIST_TRANSACTIONS, 2, message | filters)
        assert answer["error_code"] == NONE
        return [item["transactional_id"] for item in answer["transaction_states"]]

    wait_for(lambda: listed() == ["id"], "the transaction")
    assert listed(state_filters=["Ongoing"], producer_id_filters=[producer.identity[0]]) == ["id"]
    assert listed(state_filters=["Empty"]) == []
    assert listed(duration_filter=1_000_000) == []
    assert listed(transactional_id_pattern="i.") == ["id"]
    assert listed(transactional_id_pattern="x.*") == []


def test_transactions_survive_a_restart(tmp_path: Any) -> None:
    with Broker(data=tmp_path) as broker:
        create_topic(broker, 1)
        producer = Coordinator(broker)
        producer.init()
        producer.add(0)
        identity = producer.identity
    with Broker(data=tmp_path) as broker:
        producer = Coordinator(broker)
        producer.identity = identity
        wait_for(lambda: producer.state()["error_code"] == NONE, "the load")
        assert producer.state()["transaction_state"] == "Ongoing"
        assert producer.end() == NONE


def test_kafka_prints_the_state(tmp_path: Any) -> None:
    with Broker(data=tmp_path) as broker:
        create_topic(broker, 1)
        producer = Coordinator(broker)
        producer.init()
        producer.add(0)
        producer.end()
    logs = ",".join(str(path) for path in tmp_path.glob("__transaction_state-*/*.log") if path.stat().st_size)
    text = run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", logs, "--transaction-log-decoder")
    states = re.findall(r"transactionStatus\":(\d)|state=(\w+)", text)
    assert [number or name for number, name in states] == ["0", "1", "2", "4"], text


def test_features_are_lowered_and_raised(broker: Broker) -> None:
    client = connect(broker)

    def level() -> int:
        answer = client.ask(ApiKey.API_VERSIONS, 3, {"client_software_name": "t", "client_software_version": "1"})
        levels = {item["name"]: item["max_version_level"] for item in answer["finalized_features"]}
        return int(levels.get("transaction.version", 0))

    def update(level: int, upgrade_type: int) -> Any:
        update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": upgrade_type}
        message = {"timeout": 1000, "feature_updates": [update], "validate_only": False}
        return client.ask(ApiKey.UPDATE_FEATURES, 1, message)["error_code"]

    assert level() == 2
    assert update(1, 1) == "invalid_update_version"
    assert update(1, 2) == NONE
    assert level() == 1
    assert update(2, 1) == NONE
    assert level() == 2


def test_offsets_of_a_transaction_are_unstable_until_it_ends(broker: Broker) -> None:
    producer = Coordinator(broker)
    producer.init()
    found = producer.client.ask(ApiKey.FIND_COORDINATOR, 6, {"key_type": 0, "coordinator_keys": ["g"]})
    assert found["coordinators"][0]["error_code"] == NONE
    partition = {
        "partition_index": 0,
        "committed_offset": 3,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    message = {
        "transactional_id": "id",
        "group_id": "g",
        "producer_id": producer.identity[0],
        "producer_epoch": producer.identity[1],
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "t", "partitions": [partition]}],
    }

    def commit() -> Any:
        return producer.client.ask(ApiKey.TXN_OFFSET_COMMIT, 5, message)["topics"][0]["partitions"][0]["error_code"]

    def fetch() -> Any:
        request = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": [0]}], "require_stable": True}
        found = producer.client.ask(ApiKey.OFFSET_FETCH, 7, request)["topics"][0]["partitions"][0]
        return found["error_code"], found["committed_offset"]

    wait_for(lambda: commit() == NONE, "the commit")
    assert fetch() == ("unstable_offset_commit", -1)
    assert producer.end() == NONE
    assert fetch() == (NONE, 3)


def test_a_marker_without_a_producer_is_refused(broker: Broker) -> None:
    marker = {
        "producer_id": -1,
        "producer_epoch": 0,
        "transaction_result": True,
        "coordinator_epoch": 0,
        "transaction_version": 0,
        "topics": [{"name": "t", "partition_indexes": [0]}],
    }
    answer = connect(broker).ask(ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]})
    assert answer["markers"][0]["topics"][0]["partitions"][0]["error_code"] == "unknown_server_error"


def test_a_transaction_whose_marker_is_fenced_stays_prepared(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    producer = Coordinator(broker)
    producer.init()
    producer.add(0)
    marker = {
        "producer_id": producer.identity[0],
        "producer_epoch": producer.identity[1],
        "transaction_result": False,
        "topics": [{"name": "t", "partition_indexes": [0]}],
        "coordinator_epoch": 1000,
        "transaction_version": 0,
    }
    producer.client.ask(ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    assert producer.end() == NONE
    wait_for(lambda: "t-0 refuses the marker of transactional id id" in caplog.text, "the refusal")
    assert producer.state()["transaction_state"] == "PrepareCommit"
