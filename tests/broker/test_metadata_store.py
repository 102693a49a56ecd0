"""Errors and log lines if the metadata file is locked, missing, or on a failing disk."""

import contextlib
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from headrace.cluster.stores import metadata_file
from headrace.errors import KafkaError
from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.support.small_disk import small_disk
from tests.support.topic_requests import create, new_topic, produce
from tests.support.wire_client import WireClient


def set_retention(client: WireClient, topic: str) -> str:
    config = {"name": "retention.ms", "config_operation": 0, "value": "1000000"}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    answer = client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    code: str = answer["responses"][0]["error_code"]
    return code


def producer_id(client: WireClient) -> str:
    message = {"transactional_id": None, "transaction_timeout": 0}
    code: str = client.ask(ApiKey.INIT_PRODUCER_ID, 4, message)["error_code"]
    return code


def auto_created(client: WireClient, name: str) -> str:
    message = {
        "topics": [{"topic_id": None, "name": name}],
        "allow_auto_topic_creation": True,
        "include_topic_authorized_operations": False,
    }
    code: str = client.ask(ApiKey.METADATA, 12, message)["topics"][0]["error_code"]
    return code


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    monkeypatch.setattr(metadata_file, "LOCK_WAIT_S", 0.5)
    with Broker({"auto.create.topics.enable": "true"}, data=tmp_path / "data") as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap) as client:
        yield client


def test_clients_get_a_retriable_error_while_the_file_is_locked(
    broker: Broker, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert create(client, "before") == "none"
    with closing(sqlite3.connect(broker.data / "metadata.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        refused = new_topic(client, "t")
        assert refused["error_code"] == "not_controller"  # Kafka's admin clients retry
        assert "locked by another process" in refused["error_message"]
        assert set_retention(client, "before") == "not_controller"
        assert producer_id(client) == "coordinator_load_in_progress"
        assert auto_created(client, "auto") == "leader_not_available"
        key = {"coordinator_keys": ["g"]}
        assert client.ask(ApiKey.FIND_COORDINATOR, 4, key)["coordinators"][0]["error_code"] == (
            "coordinator_not_available"
        )
        assert produce(client, "before", 0) == "none"
        other.execute("ROLLBACK")
    # Other brokers in this process may log unrelated warnings: expired transactions, a busy machine.
    problems = [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    logged = [item for item in problems if item.levelname == "ERROR" or "metadata" in item.getMessage()]
    assert [item.levelname for item in logged] == ["ERROR"]
    assert "metadata.db" in logged[0].getMessage()
    assert logged[0].exc_info is None
    time.sleep(metadata_file.LOCK_WAIT_S)
    assert create(client, "t") == "none"
    assert set_retention(client, "t") == "none"
    assert producer_id(client) == "none"


def test_others_are_served_while_a_change_waits_for_the_lock(broker: Broker, client: WireClient) -> None:
    assert create(client, "before") == "none"
    with closing(sqlite3.connect(broker.data / "metadata.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        new = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        client.send(ApiKey.CREATE_TOPICS, 5, {"topics": [new], "timeout": 9000, "validate_only": False})
        with WireClient(broker.bootstrap) as innocent:
            started = time.monotonic()
            for _ in range(10):
                assert produce(innocent, "before", 0) == "none"
            assert time.monotonic() - started < metadata_file.LOCK_WAIT_S
        other.execute("ROLLBACK")
    assert client.receive(ApiKey.CREATE_TOPICS, 5)["topics"][0]["error_code"] == "none"


def test_waits_for_one_lock_do_not_add_up(broker: Broker) -> None:
    with closing(sqlite3.connect(broker.data / "metadata.db", isolation_level=None)) as other, ExitStack() as stack:
        other.execute("BEGIN EXCLUSIVE")
        clients = [stack.enter_context(WireClient(broker.bootstrap)) for _ in range(20)]
        started = time.monotonic()
        for number, client in enumerate(clients):
            topics = [{"name": f"t{number}", "num_partitions": 1, "replication_factor": 1}]
            message = {"topics": [{**topics[0], "assignments": [], "configs": []}], "timeout": 9000}
            client.send(ApiKey.CREATE_TOPICS, 5, {**message, "validate_only": False})
        for client in clients:
            answer = client.receive(ApiKey.CREATE_TOPICS, 5)
            assert answer["topics"][0]["error_code"] == "not_controller"
        assert time.monotonic() - started < 20 * metadata_file.LOCK_WAIT_S * 0.7
        other.execute("ROLLBACK")


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_change_that_would_be_lost_with_the_file_is_refused(broker: Broker, client: WireClient, how: str) -> None:
    assert create(client, "before") == "none"
    database = broker.data / "metadata.db"
    kept = database.with_name("kept")
    database.rename(kept)
    if how == "replaced":
        shutil.copy(kept, database)
    refused = new_topic(client, "t")
    assert refused["error_code"] == "kafka_storage_error"
    assert how in refused["error_message"]
    assert "restart" in refused["error_message"]
    assert producer_id(client) == "coordinator_load_in_progress"
    assert produce(client, "before", 0) == "none"


def test_the_error_of_a_damaged_file_explains_how_to_restore_it(
    broker: Broker, client: WireClient, caplog: pytest.LogCaptureFixture
) -> None:
    assert create(client, "before") == "none"
    with closing(sqlite3.connect(broker.data / "metadata.db", isolation_level=None)) as other:
        # invalidates the broker's cached pages
        other.execute("UPDATE node SET version = version WHERE path = '/'")
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with (broker.data / "metadata.db").open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(100)
        file.write(b"\xaa" * (size - 100))
    answers = [new_topic(client, name) for name in ("t", "u")]
    assert [answer["error_code"] for answer in answers] == ["kafka_storage_error"] * 2
    assert "restore it from a backup" in answers[0]["error_message"]
    assert produce(client, "before", 0) == "none"
    assert not [record for record in caplog.records if record.exc_info]


def test_changes_are_refused_while_the_disk_is_full(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"headrace.disk.hard.free.bytes": "0", "headrace.disk.hard.free.percent": "0"}
    with (
        small_disk(tmp_path / "disk", 8) as disk,
        Broker(settings, data=disk / "data") as broker,
        WireClient(broker.bootstrap) as client,
    ):
        assert create(client, "before") == "none"
        filler = disk / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        codes = [create(client, f"t{number}") for number in range(300)]
        assert codes[-1] == "kafka_storage_error"
        assert set(codes) <= {"none", "kafka_storage_error"}
        filler.unlink()
        assert create(client, "after") == "none"
    assert not [record for record in caplog.records if record.exc_info]


def test_a_file_locked_at_the_start_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_file, "LOCK_WAIT_S", 0.1)
    with Broker(data=tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(KafkaError, match=r"metadata\.db: .* locked by another process"):
            Broker(data=tmp_path).start()
        other.execute("ROLLBACK")
    with Broker(data=tmp_path):
        pass


_TO_THE_PREVIOUS_LAYOUT = """
CREATE TABLE previous (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO previous SELECT path, parent, data, version, ephemeral FROM node;
DROP TABLE node;
DROP TABLE last;
ALTER TABLE previous RENAME TO node;
CREATE INDEX child ON node (parent);
PRAGMA user_version = 0;
"""


def leader_epoch(client: WireClient, topic: str) -> int:
    message = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False}
    answer = client.ask(ApiKey.METADATA, 12, {**message, "include_topic_authorized_operations": False})
    epoch: int = answer["topics"][0]["partitions"][0]["leader_epoch"]
    return epoch


def test_leader_epochs_continue_from_a_file_of_the_previous_version(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        with Broker(data=tmp_path) as broker, WireClient(broker.bootstrap) as client:
            create(client, "t")
            epochs.append(leader_epoch(client, "t"))
            assert produce(client, "t", 0) == "none"
        with closing(sqlite3.connect(tmp_path / "metadata.db")) as other:
            other.executescript(_TO_THE_PREVIOUS_LAYOUT)
    assert epochs == [0, 1, 2]


@pytest.mark.parametrize("path", ["/cluster/id", "/brokers/topics/t", "/brokers/topics/t/partitions/0/state"])
def test_an_unreadable_node_is_named_at_the_start(tmp_path: Path, path: str) -> None:
    with Broker(data=tmp_path) as broker, WireClient(broker.bootstrap) as client:
        assert create(client, "t") == "none"
    with closing(sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)) as other:
        assert other.execute("UPDATE node SET data = x'7b7b' WHERE path = ?", (path,)).rowcount == 1
    with pytest.raises(KafkaError, match=r"metadata\.db|" + path):
        Broker(data=tmp_path).start()
