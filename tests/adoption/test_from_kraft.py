"""Headrace on a data directory of Apache Kafka 4.3 with every kind of content."""

import os
import re
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from headrace.broker.coordinators import transactions
from headrace.clock import SYSTEM
from headrace.errors import KafkaError
from headrace.testing import Broker
from headrace.wire.apis import ApiKey, versions
from headrace.wire.ids import text_to_id
from headrace.wire.records import RecordData, batch_headers, build_batch
from tests.adoption.history import (
    TOPICS,
    TRANSACTIONAL_GROUP,
    View,
    cleaner_has_cleaned,
    commit_offsets,
    committed,
    create_topics,
    files,
    flush,
    join_consumer_group,
    log_start_is_on_disk,
    read_view,
    topic_ids,
    topic_settings,
    write,
)
from tests.adoption.kafka import CLUSTER_ID, NODE_ID, Kraft
from tests.clients.drivers.java_driver import run_tool
from tests.support.broker_process import BrokerProcess
from tests.support.topic_requests import fetched
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
METADATA_LOG = "__cluster_metadata-0/00000000000000000000.log"


class Written(NamedTuple):
    """Kafka's directory after a clean stop and as a kill would leave it, and the records that Kafka returned."""

    clean: Path
    crashed: Path
    view: View
    ids: dict[str, str]
    settings: dict[str, dict[str, str]]
    refusal: str


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    base = tmp_path_factory.mktemp("kraft")
    kafka = Kraft(base)
    with kafka:
        create_topics(kafka.bootstrap)
        set_quotas_and_passwords(kafka.bootstrap)
        hanging = write(kafka.bootstrap)
        commit_offsets(kafka.bootstrap, "billing", {("orders", 0): 5, ("orders", 2): 7})
        join_consumer_group(kafka.bootstrap, "modern", "codec-none")
        wait_for(lambda: cleaner_has_cleaned(kafka.data, "latest"), "Kafka's cleaner", timeout_s=40)
        wait_for(lambda: log_start_is_on_disk(kafka.data), "the log start offset in its checkpoint")
        view = read_view(kafka.bootstrap)
        ids = topic_ids(kafka.bootstrap)
        settings = {topic: topic_settings(kafka.bootstrap, topic) for topic in TOPICS}
        with pytest.raises(KafkaError) as refused:
            Broker(data=kafka.data).start()
        with kafka.frozen():
            shutil.copytree(kafka.data, base / "crashed")
        kafka.sigterm()
    yield Written(kafka.data, base / "crashed", view, ids, settings, str(refused.value))
    del hanging


def set_quotas_and_passwords(bootstrap: str) -> None:
    """Set the quotas and passwords of two users twice, and remove those of one user."""

    def change(user: str, option: str, value: str) -> None:
        entity = ("--entity-type", "users", "--entity-name", user)
        run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, "--alter", *entity, option, value)

    for user in ("ann", "bob"):
        for rate in (1000, 2000):
            change(user, "--add-config", f"consumer_byte_rate={rate}")
            change(user, "--add-config", f"SCRAM-SHA-256=[iterations=4096,password=p{rate}]")
    change("bob", "--delete-config", "consumer_byte_rate")
    change("bob", "--delete-config", "SCRAM-SHA-256")


@pytest.fixture(params=["clean", "crashed"])
def directory(written: Written, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return shutil.copytree(getattr(written, request.param), tmp_path / "data")


@pytest.fixture
def clean(written: Written, tmp_path: Path) -> Path:
    return shutil.copytree(written.clean, tmp_path / "data")


def test_headrace_serves_everything_that_kafka_did(written: Written, directory: Path) -> None:
    with Broker(data=directory) as broker:
        assert read_view(broker.bootstrap) == written.view
        assert topic_ids(broker.bootstrap) == written.ids
        assert {topic: topic_settings(broker.bootstrap, topic) for topic in TOPICS} == written.settings
        assert committed(broker.bootstrap, "billing") == {("orders", 0): 5, ("orders", 2): 7}
        assert committed(broker.bootstrap, "modern") == {("codec-none", 0): 1}
        assert committed(broker.bootstrap, TRANSACTIONAL_GROUP) == {("orders", 1): 11}
        cluster = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10)
        assert str(cluster.cluster_id) == CLUSTER_ID
        assert list(cluster.brokers) == [NODE_ID]


def test_an_adopted_directory_takes_writes_and_survives_a_kill(written: Written, tmp_path: Path) -> None:
    directory = shutil.copytree(written.crashed, tmp_path / "data")
    with BrokerProcess(directory) as broker:
        assert sorted(re.findall("Not adopted: (1 .*)", broker.log())) == ["1 SCRAM credential", "1 client quota"]
        assert re.search(r"adopted +12 topics, 17 partitions and \d+ settings from Kafka's metadata log", broker.log())
        more = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        offsets: list[int | None] = []
        for number in range(50):
            more.produce(
                "orders",
                b"more %d" % number,
                partition=0,
                on_delivery=lambda _, message: offsets.append(message.offset()),
            )
        flush(more)
        end = written.view.ends["orders", 0, "read_committed"][1]
        assert offsets == list(range(end, end + 50))

        broker.sigkill()
        broker.start()

        now = read_view(broker.bootstrap)
        assert now.records["orders", 0, "read_committed"][:end] == written.view.records["orders", 0, "read_committed"]
        assert now.ends["orders", 0, "read_committed"] == (0, end + 50)
        unchanged = {key: value for key, value in now.records.items() if key[:2] != ("orders", 0)}
        assert unchanged == {key: value for key, value in written.view.records.items() if key[:2] != ("orders", 0)}
    lines = (directory / "orders-0" / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    epochs = [int(line.split()[0]) for line in lines]
    assert epochs == sorted(set(epochs))
    assert len(epochs) >= 2


def test_every_version_of_fetch_returns_aborted_transactions(written: Written, clean: Path) -> None:
    with Broker(data=clean) as broker, WireClient(broker.bootstrap) as client:
        topic_id = text_to_id(written.ids["ledger"])
        offered = versions(ApiKey.FETCH)
        assert offered is not None
        for version in range(offered.lowest, offered.highest + 1):
            partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000_000}
            request = {
                "max_wait": 0,
                "min_bytes": 1,
                "max_bytes": 1_000_000,
                "isolation_level": 1,
                "topics": [{"topic": "ledger", "topic_id": topic_id, "partitions": [partition]}],
                "forgotten_topics_data": [],
            }
            (answered,) = client.ask(ApiKey.FETCH, version, request)["responses"][0]["partitions"]
            (aborted,) = answered["aborted_transactions"]
            assert (aborted["first_offset"], answered["last_stable_offset"]) == (11, 33), version
        (found,) = client.ask(
            ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "payments", "partition_indexes": [0]}]}
        )["topics"][0]["partitions"]
        assert max(item["current_txn_start_offset"] for item in found["active_producers"]) == 33


def test_an_open_transaction_is_aborted_after_its_timeout(
    written: Written, clean: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "payments", 0, "read_committed"
    seen = written.view.records[key]
    with Broker(data=clean) as broker:
        assert read_view(broker.bootstrap, ["payments"]).records[key] == seen
    later = SYSTEM._replace(wall_ms=lambda: SYSTEM.wall_ms() + 700_000)
    monkeypatch.setattr(transactions, "SYSTEM", later)
    with Broker({"transaction.abort.timed.out.transaction.cleanup.interval.ms": "100"}, data=clean) as broker:
        wait_for(lambda: read_view(broker.bootstrap, ["payments"]).ends[key] == (0, 36), "the abort")
        view = read_view(broker.bootstrap, ["payments"])
        assert view.records[key] == [*seen, (34, b"later", b"after the open one")]
        assert view.ends[key] == (0, 36)
        assert committed(broker.bootstrap, TRANSACTIONAL_GROUP) == {("orders", 1): 11}
    with Broker(data=clean) as broker:
        assert read_view(broker.bootstrap, ["payments"]) == view
    paths = [str(path) for path in sorted((clean / "payments-0").glob("0*")) if path.suffix in KINDS]
    text = run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", ",".join(paths))
    assert re.search(r"firstOffset: 33 lastOffset: 35 lastStableOffset: 36", text)
    assert text.count("isvalid: true") == text.count("baseOffset:")


def test_producers_get_ids_that_kafka_has_not_assigned(clean: Path) -> None:
    with Broker(data=clean) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce("codec-none", b"by a new producer")
        flush(producer)
    segment = (clean / "codec-none-0" / "00000000000000000000.log").read_bytes()
    *_, (_, newest) = batch_headers(segment)
    assert newest.producer_id >= 1000


def test_derived_files_are_rebuilt_from_the_records(written: Written, clean: Path) -> None:
    for pattern in ("*.txnindex", "*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint"):
        for path in clean.glob(f"[a-z]*/{pattern}"):
            path.unlink()
    with Broker(data=clean) as broker:
        assert read_view(broker.bootstrap) == written.view


def test_a_truncated_segment_loses_only_its_own_records(written: Written, clean: Path) -> None:
    first, second, *_ = sorted((clean / "long-0").glob("*.log"))
    os.truncate(first, first.stat().st_size // 2)
    after = int(second.stem)
    with Broker(data=clean) as broker, WireClient(broker.bootstrap) as client:
        seen = read_view(broker.bootstrap, [topic for topic in TOPICS if topic != "long"])
        answer = fetched(client, "long", 0, offset=after - 1)
        assert answer["error_code"] == "corrupt_message"
        assert fetched(client, "long", 0, offset=after)["error_code"] == "none"
    for key, records in seen.records.items():
        assert records == written.view.records[key]


def test_a_transactional_log_is_compacted_and_kafka_can_read_every_file(written: Written, clean: Path) -> None:
    last = {key: value for _, key, value in written.view.records["ledger", 0, "read_committed"]}
    with Broker({"log.cleaner.backoff.ms": "100"}, data=clean) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        changes = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in {"min.cleanable.dirty.ratio": "0.01", "segment.ms": "1"}.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, "ledger", incremental_configs=changes)
        admin.incremental_alter_configs([resource])[resource].result(20)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(2):  # the second rolls the first one's segment, which is then no longer active
            producer.produce("ledger", b"new", b"new", timestamp=int(time.time() * 1000) + 60_000 * number)
            flush(producer)
        wait_for(lambda: cleaner_has_cleaned(clean, "ledger"), "Headrace's cleaner")
        seen = read_view(broker.bootstrap, ["ledger"])
        committed_records = seen.records["ledger", 0, "read_committed"]
        assert {key: value for _, key, value in committed_records} == {**last, b"new": b"new"}
        assert len(committed_records) < len(written.view.records["ledger", 0, "read_committed"])
    found = [str(path) for path in sorted(clean.glob("[a-z]*/*")) if path.suffix in KINDS]
    assert {Path(path).suffix for path in found} == set(KINDS)
    text = run_tool("org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(found))
    assert "isvalid: false" not in text
    assert not re.search("(?i)mismatch|not found|out of order", text)
    assert text.count("endTxnMarker: ABORT") >= 2
    assert re.search(r"producerId: \d+ firstOffset: 11 lastOffset: 21 lastStableOffset: 22", text)
    assert re.search(r"currentTxnFirstOffset: (OptionalLong\[)?33", text)


# -- failed adoptions --------------------------------------------------------------------------------------------------


def append_metadata(directory: Path, *values: bytes) -> None:
    """Add records to the metadata log, as the controller does."""
    path = directory / METADATA_LOG
    data = path.read_bytes()
    *_, (_, last) = batch_headers(data)
    records = [RecordData(None, value, 0) for value in values]
    path.write_bytes(data + build_batch(records, base_offset=last.next_offset, leader_epoch=1))


def compact(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def set_in_topic(name: str, key: str, value: str) -> bytes:
    return b"\x01\x04\x00\x02" + compact(name) + compact(key) + compact(value) + b"\x00"


def replicas(directory: Path, topic_partition: str, *brokers: int) -> bytes:
    """Encode a PartitionChangeRecord."""
    topic_id = re.search(r"topic_id: (\S+)", (directory / topic_partition / "partition.metadata").read_text())
    assert topic_id
    listed = bytes([len(brokers) + 1]) + struct.pack(f">{len(brokers)}i", *brokers)
    index = int(topic_partition.rpartition("-")[2])
    head = b"\x01\x05\x00" + struct.pack(">i", index) + text_to_id(topic_id[1]).bytes
    return head + b"\x01\x02" + bytes([len(listed)]) + listed


def cut_metadata_log(directory: Path) -> None:
    path = directory / METADATA_LOG
    path.write_bytes(path.read_bytes()[:-30])


def write_old_batch(directory: Path) -> None:
    path = directory / "codec-none-0" / "00000000000000000000.log"
    data = bytearray(path.read_bytes())
    data[16] = 1
    path.write_bytes(data)


def set_newer_format(directory: Path) -> None:
    path = directory / "meta.properties"
    path.write_text(path.read_text().replace("version=1", "version=2"))


FAILURES: dict[str, tuple[Callable[[Path], object], str]] = {
    "metadata log cut": (cut_metadata_log, "is damaged.*was longer before.*Restore the directory from a backup"),
    "record of a newer Kafka": (
        lambda directory: append_metadata(directory, b"\x01\x63\x00"),
        "record of type 99 version 0, from a newer Kafka",
    ),
    "meta.properties of a newer Kafka": (set_newer_format, "meta.properties is malformed"),
    "replicas elsewhere": (
        lambda directory: append_metadata(directory, replicas(directory, "orders-1", 7, 8)),
        "other brokers also have replicas of orders-1.*headrace.adopt.partial=true",
    ),
    "tiered topic": (
        lambda directory: append_metadata(directory, set_in_topic("orders", "remote.storage.enable", "true")),
        "tiered storage, which may hold older records of orders",
    ),
    "directory missing": (
        lambda directory: shutil.rmtree(directory / "orders-1"),
        "directories of orders-1, which belong to this broker, are missing",
    ),
    "messages of an old format": (write_old_batch, "message format v1 at byte 0"),
    "malformed topic id": (
        lambda directory: (directory / "orders-0" / "partition.metadata").write_text("version: 0\n"),
        "partition.metadata is malformed",
    ),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_adoption_changes_no_byte(clean: Path, failure: str) -> None:
    spoil, message = FAILURES[failure]
    spoil(clean)
    before = files(clean)
    with pytest.raises(KafkaError, match=message):
        Broker(data=clean).start()
    assert files(clean) == before


def test_a_directory_in_use_by_kafka_is_refused(written: Written) -> None:
    assert re.search(r"in use by another broker \(it holds the lock .*\.lock\)", written.refusal)


def test_a_broker_id_other_than_the_directorys_is_refused(clean: Path) -> None:
    before = files(clean)
    with pytest.raises(KafkaError, match="belongs to broker 7, not 3"):
        Broker({"node.id": "3"}, data=clean).start()
    assert files(clean) == before


def test_a_part_of_a_cluster_is_adopted_if_enabled(written: Written, clean: Path) -> None:
    append_metadata(clean, replicas(clean, "orders-1", 8), replicas(clean, "orders-2", 8, 7))
    shutil.rmtree(clean / "orders-1")
    with Broker({"headrace.adopt.partial": "true"}, data=clean) as broker:
        seen = read_view(broker.bootstrap, ["orders"])
    assert seen.records["orders", 1, "read_committed"] == []
    for index in (0, 2):
        assert (
            seen.records["orders", index, "read_committed"] == written.view.records["orders", index, "read_committed"]
        )


def test_metadata_lost_after_the_adoption_is_not_replaced_by_kafkas(written: Written, clean: Path) -> None:
    with Broker({"num.partitions": "1"}, data=clean) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("made-since", b"value")
        flush(producer)
    for path in clean.glob("metadata.db*"):
        path.unlink()
    with Broker(data=clean) as broker:
        seen = read_view(broker.bootstrap, ["orders", "made-since"])
        assert len(seen.records["made-since", 0, "read_committed"]) == 1
        assert topic_settings(broker.bootstrap, "latest")["cleanup.policy"] == "compact"
        assert topic_settings(broker.bootstrap, "orders")["retention.ms"] == "-1"
