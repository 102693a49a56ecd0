"""Data directories renamed, removed or replaced under a running broker, and deleted lock files."""

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import KafkaError
from headrace.storage.dirs.log_dirs import LogDirs
from tests.broker.log_directories import STORAGE_ERROR, Directories
from tests.support.broker_process import BrokerProcess
from tests.support.topic_requests import create, new_topic, produce
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker


@pytest.mark.parametrize("how", ["renamed", "removed", "replaced"])
def test_a_broker_without_its_only_directory_stops(broker: BrokerProcess, how: str) -> None:
    with WireClient(broker.bootstrap) as client:
        assert create(client, "before") == "none"
        assert produce(client, "before", 0) == "none"
        aside = broker.data.with_name("aside")
        if how == "removed":
            shutil.rmtree(broker.data)
        else:
            broker.data.rename(aside)
        if how == "replaced":
            shutil.copytree(aside, broker.data)
        try:
            assert new_topic(client, "t")["error_code"] == STORAGE_ERROR
        except ConnectionError:
            pass  # the broker has noticed and ended
    wait_for(lambda: not broker.running, "the end of the broker")
    assert broker.sigterm() == 1
    errors = [line for line in broker.log().splitlines() if "CRITICAL" in line]
    assert len(errors) == 1
    assert f"{broker.data} has failed" in errors[0]
    assert ("another directory" if how == "replaced" else "removed or renamed") in errors[0]
    assert "Traceback" not in broker.log()
    if how == "renamed":
        aside.rename(broker.data)
    if how != "removed":
        broker.start()
        with WireClient(broker.bootstrap) as client:
            assert produce(client, "before", 0) == "none"
            assert produce(client, "t", 0) == "unknown_topic_or_partition"


def test_an_idle_broker_without_its_directory_stops(broker: BrokerProcess) -> None:
    broker.data.rename(broker.data.with_name("aside"))
    wait_for(lambda: not broker.running, "the end of the broker")
    assert broker.sigterm() == 1


def test_a_renamed_directory_takes_only_its_own_partitions_offline(tmp_path: Path) -> None:
    dirs = Directories(tmp_path)
    with dirs.broker, WireClient(dirs.broker.bootstrap) as client:
        dirs.create(client, "t", 2)
        offline, online = (0, 1) if dirs.directory_of("t-0") == dirs.b else (1, 0)
        dirs.b.rename(tmp_path / "aside")
        dirs.create(client, "u", 4)
        assert len(list(dirs.a.glob("u-?"))) == 4
        wait_for(lambda: produce(client, "t", offline) == STORAGE_ERROR, "the partition to be offline")
        assert produce(client, "t", online) == "none"
        assert [produce(client, "u", partition) for partition in range(4)] == ["none"] * 4
        assert f"Log directory {dirs.b} has failed (it was removed or renamed" in dirs.broker.log()
        assert dirs.broker.sigterm() == 0
        assert "Traceback" not in dirs.broker.log()


def test_changes_are_refused_without_the_metadata_directory(tmp_path: Path) -> None:
    dirs = Directories(tmp_path)
    with dirs.broker, WireClient(dirs.broker.bootstrap) as client:
        dirs.create(client, "t", 2)
        online = 0 if dirs.directory_of("t-0") == dirs.b else 1
        dirs.a.rename(tmp_path / "aside")
        refused = new_topic(client, "u")
        assert refused["error_code"] == STORAGE_ERROR
        assert "renamed" in refused["error_message"]
        assert produce(client, "t", online) == "none"
        # another broker started here: the stopping one must not remove its files
        dirs.a.mkdir()
        (dirs.a / "metadata.db-wal").write_bytes(b"mine")
        assert dirs.broker.sigterm() == 0
        assert (dirs.a / "metadata.db-wal").read_bytes() == b"mine"
        assert "Traceback" not in dirs.broker.log()


# -- the lock ----------------------------------------------------------------------------------------------------------


def test_a_deleted_lock_file_does_not_admit_a_second_broker(broker: BrokerProcess) -> None:
    lock = broker.data / ".lock"
    lock.unlink()
    command = [sys.executable, "-m", "headrace", "start", "--listen", "127.0.0.1:0", "--data", str(broker.data)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert second.returncode == 1
    assert "in use by another broker" in second.stderr
    # Trying the lock earlier could take it from the broker.
    wait_for(lambda: "was deleted: created and locked it again" in broker.log(), "a new lock file")
    assert _kafka_is_kept_out(lock)
    with WireClient(broker.bootstrap) as client:
        assert create(client, "t") == "none"
        assert produce(client, "t", 0) == "none"


def test_the_broker_stops_if_kafka_has_taken_the_lock(broker: BrokerProcess) -> None:
    replacement = broker.data / "new-lock"
    with replacement.open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        replacement.replace(broker.data / ".lock")
        wait_for(lambda: not broker.running, "the end of the broker")
    assert broker.sigterm() == 1
    assert "another process has created and locked it again" in broker.log()


def _kafka_is_kept_out(lock: Path) -> bool:
    """Return True if another process holds the lock that Java takes."""
    with lock.open("r+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_a_refused_second_broker_removes_nothing(tmp_path: Path) -> None:
    first = LogDirs.open([tmp_path / "data"], broker_id=0)
    try:
        (tmp_path / "data" / ".lock").unlink()
        with pytest.raises(KafkaError, match="in use by another broker"):
            LogDirs.open([tmp_path / "data"], broker_id=0)
        first.check()
        assert (tmp_path / "data" / ".lock").exists()
    finally:
        first.close({})


def test_a_survey_removes_the_directories_it_created(tmp_path: Path) -> None:
    surveyed = LogDirs.survey([tmp_path / "a" / "b"], broker_id=0)
    surveyed.close({})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    LogDirs.survey([tmp_path / "mine"], broker_id=0).close({})
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]
