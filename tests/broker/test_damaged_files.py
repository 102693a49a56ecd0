"""Files damaged while the broker was down are repaired, or refused with a clear message."""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.support.topic_requests import create, fetched, produce, values
from tests.support.wire_client import WireClient

GARBAGE = bytes(range(256))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a topic of two partitions and one record in each."""
    with Broker(data=tmp_path) as broker, WireClient(broker.bootstrap) as client:
        assert create(client, "t", 2) == "none"
        for partition in (0, 1):
            assert produce(client, "t", partition) == "none"
    return tmp_path


def garble(path: Path) -> None:
    path.write_bytes(GARBAGE)


def lose(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_with_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def metadata(client: WireClient) -> dict[str, Any]:
    message = {"topics": None, "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    return client.ask(ApiKey.METADATA, 12, message)


def test_a_lost_cluster_id_is_restored_from_the_metadata(data: Path) -> None:
    text = (data / "meta.properties").read_text()
    for damage in (lose, empty, garble):
        damage(data / "meta.properties")
        with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
            cluster_id = metadata(client)["cluster_id"]
            assert f"cluster.id={cluster_id}" in text
            assert values(client, "t") == [b"t"]


def make_unreadable(path: Path) -> None:
    """Make a file unreadable, even for root."""
    replace_with_directory(path)


@pytest.mark.parametrize("damage", [garble, make_unreadable])
def test_an_unreadable_topic_id_takes_only_its_partition_offline(
    data: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(data / "t-0" / "partition.metadata")
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert produce(client, "t", 0) == "kafka_storage_error"
        assert produce(client, "t", 1) == "none"
        assert values(client, "t", 1) == [b"t", b"t"]
    assert any(
        record.levelname == "ERROR" and "t-0/partition.metadata" in record.getMessage() and not record.exc_info
        for record in caplog.records
    )
    path = data / "t-0" / "partition.metadata"
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert values(client, "t") == [b"t"]


def commands(text: str) -> list[list[str]]:
    """Return the shell commands in a message, split into words."""
    return [shlex.split(item) for item in re.findall(r"(?:mv|rm)(?: '[^']+')+", text)]


@pytest.mark.parametrize("cleanly", [True, False])
def test_a_swapped_topic_id_hides_no_records(data: Path, cleanly: bool, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert create(client, "u") == "none"
    if not cleanly:
        lose(data / ".kafka_cleanshutdown")
    (data / "t-0" / "partition.metadata").write_bytes((data / "u-0" / "partition.metadata").read_bytes())
    for _ in range(2):
        caplog.clear()
        with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
            assert produce(client, "t", 0) == "kafka_storage_error"
            assert produce(client, "t", 1) == "none"
            assert produce(client, "u", 0) == "none"
        (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert "that of topic u" in logged
    removal, *_ = commands(logged)
    assert removal[0] == "rm"
    Path(removal[1]).unlink()
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert values(client, "t") == [b"t"]


def test_an_unknown_topic_id_hides_no_records(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = data / "t-0" / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert produce(client, "t", 0) == "kafka_storage_error"
    (logged,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    _, (move, source, target) = commands(logged)
    assert move == "mv"
    Path(source).rename(target)
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert values(client, "t") == []


def test_the_logged_commands_restore_a_stray_partition(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    (data / "t-0").rename(data / "other-0")
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert produce(client, "t", 1) == "none"
        assert create(client, "other") == "none"
    logged = next(item.getMessage() for item in caplog.records if "not served" in item.getMessage())
    aside, back, forget, _ = commands(logged + " rm 'nothing'")
    Path(aside[1]).rename(aside[2])
    Path(back[1]).rename(back[2])
    Path(forget[1]).unlink()
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert values(client, "other") == [b"t"]


def test_garbled_metadata_is_refused(data: Path) -> None:
    garble(data / "metadata.db")
    with pytest.raises(KafkaError, match="metadata store is not available") as refused:
        Broker(data=data).start()
    assert refused.value.code is ErrorCode.kafka_storage_error


def test_derived_files_are_rebuilt_from_the_log(data: Path) -> None:
    for name in ("leader-epoch-checkpoint", "00000000000000000001.snapshot"):
        for damage in (garble, lose, empty):
            path = data / "t-0" / name
            path.touch()
            damage(path)
            with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
                assert values(client, "t") == [b"t"], f"{damage.__name__} {name}"


def test_an_unreadable_log_takes_only_its_partition_offline(data: Path) -> None:
    replace_with_directory(data / "t-0" / "00000000000000000000.index")
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert produce(client, "t", 0) == "kafka_storage_error"
        assert fetched(client, "t", 0)["error_code"] == "kafka_storage_error"
        assert produce(client, "t", 1) == "none"
        assert values(client, "t", 1) == [b"t", b"t"]

        client.ask(ApiKey.DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout": 9000})
        assert produce(client, "t", 0) == "unknown_topic_or_partition"
        assert create(client, "t") == "none"
        assert produce(client, "t", 0) == "none"
        assert values(client, "t") == [b"t"]


def test_damage_in_the_middle_of_a_log_is_logged_once_and_not_served(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = data / "t-0" / "00000000000000000000.log"
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        original = path.read_bytes()
        path.write_bytes(original[:16] + b"\x7f" + original[17:])
        for _ in range(3):
            assert fetched(client, "t", 0)["error_code"] == "corrupt_message"
        assert values(client, "t", 1) == [b"t"]
        path.write_bytes(original)
        assert values(client, "t") == [b"t"]
    logged = [record.getMessage() for record in caplog.records if "the file is damaged" in record.getMessage()]
    assert len(logged) == 1
    assert f"{path} has no valid record batch at byte 0" in logged[0]


def test_a_damaged_segment_is_copied_before_it_is_truncated(data: Path) -> None:
    path = data / "t-0" / "00000000000000000000.log"
    damaged = path.read_bytes()[:16] + b"\x7f" + path.read_bytes()[17:]
    path.write_bytes(damaged)
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert values(client, "t") == []
    assert path.with_name(path.name + ".damaged").read_bytes() == damaged


def test_a_topic_with_missing_files_can_be_deleted_and_recreated(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        shutil.rmtree(data / "t-0")
        client.ask(ApiKey.DELETE_TOPICS, 4, {"topic_names": ["t"], "timeout": 9000})
        assert create(client, "t") == "none"
        assert produce(client, "t", 0) == "none"
        assert values(client, "t") == [b"t"]
    assert not [record for record in caplog.records if record.exc_info]
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        assert values(client, "t") == [b"t"]
