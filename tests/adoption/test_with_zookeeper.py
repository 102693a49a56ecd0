"""One data directory under Headrace, then Apache Kafka 3.9 with ZooKeeper, then Headrace again."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from headrace.adoption.found_directories import METADATA_FILE
from headrace.cli.main import app
from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, batch_headers, build_batch
from tests.adoption.history import (
    CODECS,
    TOPICS,
    TRANSACTIONAL_GROUP,
    View,
    cleaner_has_cleaned,
    commit_offsets,
    committed,
    create_topics,
    files,
    flush,
    read_view,
    topic_ids,
    topic_settings,
    write_plain,
    write_transactions,
)
from tests.adoption.kafka import NODE_ID, WithZooKeeper, ZooKeeper
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow

KAFKA_TOPIC = "born-in-kafka"


def headrace(*arguments: str) -> tuple[int, str]:
    """Run a command; return its exit code and output."""
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, re.sub(r"\s+", " ", result.output)


class Round(NamedTuple):
    """Records that both brokers returned, and the output of the commands in between; `zookeeper` still runs."""

    data: Path
    zookeeper: str
    by_headrace: View
    settings: dict[str, dict[str, str]]
    ids: dict[str, str]
    while_running: tuple[int, str]
    in_use: tuple[int, str]
    first_by_kafka: View
    settings_in_kafka: dict[str, dict[str, str]]
    ids_in_kafka: dict[str, str]
    offsets_in_kafka: dict[tuple[str, int], int]
    last_by_kafka: View
    after_a_kill_by_headrace: View
    after_a_kill_by_kafka: View


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    with ZooKeeper(tmp_path_factory.mktemp("zookeeper")) as running:
        yield running


@pytest.fixture(scope="module")
def round_trip(tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeper) -> Iterator[Round]:
    base = tmp_path_factory.mktemp("round")
    data = base / "data"
    with Broker({"node.id": str(NODE_ID), "log.cleaner.backoff.ms": "100"}, data=data) as broker:
        create_topics(broker.bootstrap)
        write_plain(broker.bootstrap)
        commit_offsets(broker.bootstrap, "billing", {("orders", 0): 5, ("orders", 2): 7})
        wait_for(lambda: cleaner_has_cleaned(data, "latest"), "Headrace's cleaner")
        by_headrace = read_view(broker.bootstrap)
        settings = {topic: topic_settings(broker.bootstrap, topic) for topic in TOPICS}
        ids = topic_ids(broker.bootstrap)
        in_use = headrace("handover", "--data", str(data), "--zookeeper", zookeeper.address)
    code, output = headrace("handover", "--data", str(data), "--zookeeper", zookeeper.address)
    assert code == 0, output
    kafka = WithZooKeeper(base / "kafka", zookeeper.address, data=data)
    with kafka:
        first = read_view(kafka.bootstrap)
        settings_in_kafka = {topic: topic_settings(kafka.bootstrap, topic) for topic in TOPICS}
        ids_in_kafka = topic_ids(kafka.bootstrap)
        offsets = committed(kafka.bootstrap, "billing")
        more = Producer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
        for number in range(100):
            more.produce("orders", b"more %d" % number, b"key %d" % (number % 17))
        flush(more)
        hanging = write_transactions(kafka.bootstrap)
        new = NewTopic(KAFKA_TOPIC, 2, 1, config={"retention.ms": "777777777"})
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([new])[KAFKA_TOPIC].result(20)
        commit_offsets(kafka.bootstrap, "billing", {("orders", 0): 50})
        last = read_view(kafka.bootstrap, [*TOPICS, KAFKA_TOPIC])
        while_running = headrace("takeover", "--data", str(data), "--zookeeper", zookeeper.address)
        kafka.sigterm()
    # Another round trip, from a killed Headrace: Kafka must recover the directory.
    killed = shutil.copytree(data, base / "killed")
    headrace("takeover", "--data", str(killed), "--zookeeper", zookeeper.address)
    with BrokerProcess(killed) as dying:
        write_plain(dying.bootstrap)
        after_a_kill_by_headrace = read_view(dying.bootstrap)
        dying.sigkill()
    code, output = headrace("handover", "--data", str(killed), "--zookeeper", zookeeper.address)
    assert code == 0, output
    kafka = WithZooKeeper(base / "recovering-kafka", zookeeper.address, {"log.cleaner.enable": "false"}, data=killed)
    with kafka:
        after_a_kill_by_kafka = read_view(kafka.bootstrap)
        kafka.sigterm()
    headrace("takeover", "--data", str(killed), "--zookeeper", zookeeper.address)
    yield Round(
        data,
        zookeeper.address,
        by_headrace,
        settings,
        ids,
        while_running,
        in_use,
        first,
        settings_in_kafka,
        ids_in_kafka,
        offsets,
        last,
        after_a_kill_by_headrace,
        after_a_kill_by_kafka,
    )
    del hanging


@pytest.fixture
def from_kafka(round_trip: Round, tmp_path: Path) -> Path:
    return shutil.copytree(round_trip.data, tmp_path / "data")


def test_kafka_serves_the_records_of_headrace(round_trip: Round) -> None:
    assert round_trip.first_by_kafka == round_trip.by_headrace
    assert round_trip.settings_in_kafka == round_trip.settings
    assert round_trip.ids_in_kafka == round_trip.ids
    assert round_trip.offsets_in_kafka == {("orders", 0): 5, ("orders", 2): 7}


def test_kafka_recovers_the_records_of_a_killed_headrace(round_trip: Round) -> None:
    assert round_trip.after_a_kill_by_kafka == round_trip.after_a_kill_by_headrace


def test_both_commands_are_refused_while_a_broker_runs(round_trip: Round) -> None:
    code, output = round_trip.in_use
    assert (code, "in use by another broker" in output) == (1, True)
    code, output = round_trip.while_running
    assert (code, "(broker ids: 7). Stop it first" in output) == (1, True)


def test_headrace_continues_after_kafka(round_trip: Round, from_kafka: Path) -> None:
    code, output = headrace("takeover", "--data", str(from_kafka), "--zookeeper", round_trip.zookeeper)
    assert code == 0, output
    assert re.search(r"Took over 13 topics, \d+ partitions and \d+ settings from ZooKeeper at", output)

    with Broker(data=from_kafka) as broker:
        assert read_view(broker.bootstrap, [*TOPICS, KAFKA_TOPIC]) == round_trip.last_by_kafka
        assert {topic: topic_settings(broker.bootstrap, topic) for topic in TOPICS} == round_trip.settings
        assert topic_settings(broker.bootstrap, KAFKA_TOPIC) == {"retention.ms": "777777777"}
        assert topic_ids(broker.bootstrap) == round_trip.ids
        assert committed(broker.bootstrap, "billing") == {("orders", 0): 50, ("orders", 2): 7}
        assert committed(broker.bootstrap, TRANSACTIONAL_GROUP) == {("orders", 1): 11}


def test_an_idempotent_producer_continues_its_sequence(round_trip: Round, from_kafka: Path) -> None:
    *_, (_, last) = batch_headers((from_kafka / "orders-0" / f"{0:020}.log").read_bytes())
    headrace("takeover", "--data", str(from_kafka), "--zookeeper", round_trip.zookeeper)
    with Broker(data=from_kafka) as broker, WireClient(broker.bootstrap) as client:

        def send(sequence: int) -> tuple[str, int]:
            batch = build_batch(
                [RecordData(b"key", b"one more", last.max_timestamp)],
                producer_id=last.producer_id,
                producer_epoch=last.producer_epoch,
                base_sequence=sequence,
            )
            request = {
                "acks": -1,
                "timeout": 10_000,
                "topic_data": [{"name": "orders", "partition_data": [{"index": 0, "records": batch}]}],
            }
            (answer,) = client.ask(ApiKey.PRODUCE, 9, request)["responses"][0]["partition_responses"]
            return answer["error_code"], answer["base_offset"]

        assert send(last.last_sequence + 2) == ("out_of_order_sequence_number", -1)
        assert send(last.last_sequence + 1) == ("none", last.next_offset)
        assert send(last.last_sequence + 1) == ("none", last.next_offset)


def test_without_zookeeper_records_are_adopted_and_nothing_expires(round_trip: Round, from_kafka: Path) -> None:
    with Broker(data=from_kafka) as broker:
        assert read_view(broker.bootstrap, [*TOPICS, KAFKA_TOPIC]) == round_trip.last_by_kafka
        assert topic_ids(broker.bootstrap) == round_trip.ids
        for topic in (*(f"codec-{codec}" for codec in CODECS), KAFKA_TOPIC):
            assert topic_settings(broker.bootstrap, topic) == {"retention.ms": "-1", "retention.bytes": "-1"}
        assert topic_settings(broker.bootstrap, "latest") == {"cleanup.policy": "compact"}


def test_mismatched_directories_are_refused_unchanged(round_trip: Round, from_kafka: Path) -> None:
    to = ("--zookeeper", round_trip.zookeeper)
    before = files(from_kafka)
    assert "no data of a Headrace broker" in headrace("handover", "--data", str(from_kafka), *to)[1]
    (from_kafka / "stranger-0").mkdir()
    assert "contain stranger-0" in headrace("takeover", "--data", str(from_kafka), *to)[1]
    (from_kafka / "stranger-0").rmdir()
    properties = from_kafka / "meta.properties"
    text = properties.read_text()
    properties.write_text(re.sub("cluster.id=.*", "cluster.id=aGVhZHJhY2UtYWRvcHQtMg", text))
    assert "belongs to cluster aGVhZHJhY2UtYWRvcHQtMg" in headrace("takeover", "--data", str(from_kafka), *to)[1]
    properties.write_text(text)
    assert files(from_kafka) == before


def test_the_zookeeper_of_another_cluster_is_refused(round_trip: Round, tmp_path: Path) -> None:
    with Broker(data=tmp_path):
        pass
    code, output = headrace("handover", "--data", str(tmp_path), "--zookeeper", round_trip.zookeeper)
    assert (code, "belongs to cluster" in output) == (1, True)
    assert (tmp_path / METADATA_FILE).exists()
