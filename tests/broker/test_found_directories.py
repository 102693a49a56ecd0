"""Partition directories that the broker's metadata does not know."""

import logging
import shutil
import signal
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.adoption.found_directories import METADATA_FILE
from headrace.testing import Broker
from tests.support.broker_process import BrokerProcess
from tests.support.topics import create_topic, read_values


def produce(bootstrap: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=number % 2)
    assert producer.flush(20) == 0


def topics(bootstrap: str) -> dict[str, int]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    return {name: len(topic.partitions) for name, topic in found.items()}


def test_logs_with_lost_metadata_are_served_again(tmp_path: Path) -> None:
    with Broker({"num.partitions": "2"}, data=tmp_path) as broker:
        produce(broker.bootstrap, "kept", 100)
    for path in tmp_path.glob(f"{METADATA_FILE}*"):
        path.unlink()

    with Broker(data=tmp_path) as broker:
        assert topics(broker.bootstrap) == {"kept": 2}
        assert sorted(map(int, read_values(broker.bootstrap, "kept"))) == list(range(100))
        produce(broker.bootstrap, "kept", 10)
        assert len(read_values(broker.bootstrap, "kept")) == 110


def test_a_directory_of_no_topic_is_set_aside_with_its_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Broker({"num.partitions": "2"}, data=tmp_path) as broker:
        produce(broker.bootstrap, "t", 10)
    shutil.copytree(tmp_path / "t-0", tmp_path / "left-over-0")
    shutil.copytree(tmp_path / "t-0", tmp_path / "older-0")
    (tmp_path / "older-0" / "partition.metadata").unlink()

    with caplog.at_level(logging.WARNING), Broker(data=tmp_path) as broker:
        assert topics(broker.bootstrap) == {"t": 2}

    (stray,) = tmp_path.glob("left-over-0.*-stray")
    assert (stray / "00000000000000000000.log").stat().st_size > 0
    assert str(stray) in caplog.text
    assert not (tmp_path / "left-over-0").exists()
    assert "The cluster has no partition left-over-0 with topic id " in caplog.text
    assert "The cluster has no partition older-0. " in caplog.text


def test_a_recreated_topic_does_not_get_the_old_files(tmp_path: Path) -> None:
    with Broker({"num.partitions": "2"}, data=tmp_path) as broker:
        produce(broker.bootstrap, "t", 10)
        shutil.copytree(tmp_path / "t-0", tmp_path / "copy")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.delete_topics(["t"])["t"].result(10)
        create_topic(broker.bootstrap, "t", 2)
    shutil.rmtree(tmp_path / "t-0")
    (tmp_path / "copy").rename(tmp_path / "t-0")
    (tmp_path / ".kafka_cleanshutdown").unlink()  # a power failure has undone the deletion

    with Broker(data=tmp_path) as broker:
        assert topics(broker.bootstrap) == {"t": 2}
        assert read_values(broker.bootstrap, "t") == []


def test_acknowledged_topic_changes_survive_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        names = [f"topic-{number}" for number in range(20)]
        for name in names[:10]:
            create_topic(broker.bootstrap, name, 2)
        deleting = admin.delete_topics(names[:5])
        creating = admin.create_topics([NewTopic(name, 2) for name in names[10:]])
        for acknowledged in (deleting[names[0]], creating[names[10]]):
            acknowledged.result(20)
        broker.sigkill()
        deleted = {name for name, future in deleting.items() if future.done() and future.exception() is None}
        added = {name for name, future in creating.items() if future.done() and future.exception() is None}

        broker.start()

        found = topics(broker.bootstrap)
        assert not deleted & found.keys()
        assert (added | set(names[5:10])) <= found.keys()
        for name, partitions in found.items():
            assert partitions == 2
            produce(broker.bootstrap, name, 4)
            assert len(read_values(broker.bootstrap, name)) == 4
        assert broker.sigterm() in (0, -signal.SIGTERM)
    assert "Traceback" not in broker.log_path.read_text()
