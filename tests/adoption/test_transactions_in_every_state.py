"""Headrace on a directory of a killed Apache Kafka 4.3, with transactions in every state."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer as Librdkafka

from headrace.coordinator.transactions.records import decode_value, encode_key, encode_value
from headrace.coordinator.transactions.states import TransactionState
from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, batch_headers, build_batch, iter_records
from tests.adoption.history import read_view
from tests.adoption.kafka import Kraft
from tests.parity.both import Message, Side
from tests.parity.transactions import Producer, errors_in
from tests.support.topics import create_topic, read_values
from tests.support.waiting import wait_for

ENDED = {"CompleteCommit": True, "CompleteAbort": False}
PREPARED = {"PrepareCommit": TransactionState.PREPARE_COMMIT, "PrepareAbort": TransactionState.PREPARE_ABORT}
STATES = ("Empty", "Ongoing", *ENDED, *PREPARED)
"""Also the transactional ids, and the topics they write to."""


class KafkaDirectory(NamedTuple):
    directory: Path
    level: int


@pytest.fixture(
    scope="module",
    params=[pytest.param(0, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow), 2],
    ids=lambda level: f"transaction.version={level}",
)
def kafka_directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> KafkaDirectory:
    level: int = request.param
    base = tmp_path_factory.mktemp("kraft")
    with Kraft(base, features={"transaction.version": level}) as kafka:
        side = Side(kafka.bootstrap)
        _write(side, kafka.bootstrap, level)
        side.close()
        with kafka.frozen():
            shutil.copytree(kafka.data, base / "kafka_directory")
    for name, state in PREPARED.items():
        _prepare(base / "kafka_directory", name, state, level)
    return KafkaDirectory(base / "kafka_directory", level)


def _write(side: Side, bootstrap: str, level: int) -> None:
    for state in STATES:
        create_topic(bootstrap, state)

    def coordinator() -> bool:  # Kafka creates its topic on the first request
        found = side.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "any", "key_type": 1}, "transactions")
        return errors_in(found) == {"none"}

    wait_for(coordinator, "a coordinator")
    for state in STATES:
        producer = Producer(side, state, state)
        producer.init(timeout_ms=600_000)
        if state == "Empty":
            continue
        if level < 2:
            producer.add()
        producer.produce(12 if level == 2 else 11)
        if state in ENDED:
            producer.end(5 if level == 2 else 4, commit=ENDED[state])


def _prepare(directory: Path, name: str, state: TransactionState, level: int) -> None:
    """Append the decision to end the transaction, as if Kafka were killed right after it."""
    for path in directory.glob("__transaction_state-*/00000000000000000000.log"):
        data = path.read_bytes()
        key = encode_key(name)
        values = [record.value for record in iter_records(data) if record.key == key]
        if not values:
            continue
        assert values[-1] is not None
        ongoing = decode_value(name, bytes(values[-1]))
        assert ongoing is not None
        assert ongoing.state is TransactionState.ONGOING
        decided = ongoing._replace(
            state=state, client_version=level if level == 2 else 0, producer_epoch=ongoing.producer_epoch + (level == 2)
        )
        *_, (_, last) = batch_headers(data)
        record = RecordData(key, encode_value(decided, flexible=level >= 1), ongoing.last_update_ms)
        batch = build_batch([record], base_offset=last.next_offset, leader_epoch=0)
        path.write_bytes(data + batch)
        return
    raise AssertionError(f"no record of {name}")


@pytest.fixture
def broker(kafka_directory: KafkaDirectory, tmp_path: Path) -> Iterator[Broker]:
    with Broker(data=shutil.copytree(kafka_directory.directory, tmp_path / "data")) as broker:
        yield broker


def states(bootstrap: str) -> dict[str, str]:
    side = Side(bootstrap)
    try:
        request: Message = {"state_filters": [], "producer_id_filters": []}
        listed = side.ask(ApiKey.LIST_TRANSACTIONS, 0, request, "transactions")
        return {item["transactional_id"]: item["transaction_state"] for item in listed["transaction_states"]}
    finally:
        side.close()


def test_only_decided_transactions_are_completed(broker: Broker) -> None:
    expected = {
        "Empty": "Empty",
        "Ongoing": "Ongoing",
        "CompleteCommit": "CompleteCommit",
        "CompleteAbort": "CompleteAbort",
        "PrepareCommit": "CompleteCommit",
        "PrepareAbort": "CompleteAbort",
    }
    wait_for(lambda: states(broker.bootstrap) == expected, "the decided ones are completed")
    view = read_view(broker.bootstrap, STATES)
    counts = {state: len(view.records[state, 0, "read_committed"]) for state in STATES}
    assert counts == {state: int(state in ("CompleteCommit", "PrepareCommit")) for state in STATES}
    ends = {state: view.ends[state, 0, "read_committed"] for state in STATES}
    assert ends == {state: (0, 0 if state in ("Empty", "Ongoing") else 2) for state in STATES}


def test_the_producers_successors_continue(broker: Broker) -> None:
    for state in STATES:
        successor = Librdkafka({"bootstrap.servers": broker.bootstrap, "transactional.id": state})
        successor.init_transactions(30)
        successor.begin_transaction()
        successor.produce(state, b"by the successor", partition=0)
        successor.commit_transaction(30)
    for state in STATES:
        first = [b"value"] if state in ("CompleteCommit", "PrepareCommit") else []
        assert read_values(broker.bootstrap, state, isolation="read_committed") == [*first, b"by the successor"], state


def test_the_feature_keeps_its_level(broker: Broker, kafka_directory: KafkaDirectory) -> None:
    side = Side(broker.bootstrap)
    try:
        request = {"client_software_name": "tests", "client_software_version": "1"}
        answer = side.ask(ApiKey.API_VERSIONS, 3, request, "features")
    finally:
        side.close()
    levels = {item["name"]: item["max_version_level"] for item in answer["finalized_features"]}
    assert levels.get("transaction.version", 0) == kafka_directory.level
