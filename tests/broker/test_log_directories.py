"""Partitions move between log directories under load; a failed directory does not affect the others."""

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.broker.log_directories import STORAGE_ERROR, Directories, move
from tests.support.small_disk import small_disk
from tests.support.topic_requests import create, fetched, produce, values
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

SLOW_MOVES = {"replica.alter.log.dirs.io.max.bytes.per.second": 100_000}


@pytest.fixture
def dirs(tmp_path: Path) -> Iterator[Directories]:
    dirs = Directories(tmp_path)
    yield dirs
    dirs.broker.close()


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Directories]:
    dirs = Directories(tmp_path, dict(SLOW_MOVES))
    yield dirs
    dirs.broker.close()


def described(client: WireClient, directory: Path) -> dict[str, Any]:
    results = client.ask(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})["results"]
    return next(result for result in results if result["log_dir"] == str(directory))


def copies(client: WireClient, directory: Path) -> list[dict[str, Any]]:
    """Return the partitions that are being moved into a directory."""
    topics = described(client, directory)["topics"]
    return [item for topic in topics for item in topic["partitions"] if item["is_future_key"]]


def append(client: WireClient, topic: str, *numbers: int, size: int = 0) -> str:
    return produce(client, topic, 0, *(b"%d" % number + b" " * size for number in numbers), acks=-1)


class Writer:
    """A client that appends ascending numbers until stopped and fails on any refusal."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.count = 0
        self.refused: list[str] = []
        self._stop = threading.Event()
        self._bootstrap, self._topic = bootstrap, topic
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def _write(self) -> None:
        with WireClient(self._bootstrap) as client:
            while not self._stop.is_set():
                code = append(client, self._topic, self.count)
                if code != "none":
                    self.refused.append(code)
                    return
                self.count += 1

    def wait_for_more(self) -> None:
        before = self.count
        wait_for(lambda: self.count > before + 20, "appends")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_a_partition_moved_off_a_full_disk_accepts_records_again(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 64) as disk:
        dirs = Directories(tmp_path, {"headrace.disk.hard.free.bytes": 128 * 1024 * 1024}, b=disk / "b")
        with dirs.broker, WireClient(dirs.broker.bootstrap) as client:
            move(client, dirs.b, "t")
            dirs.create(client, "t", 1)
            assert dirs.directory_of("t-0") == dirs.b
            wait_for(lambda: append(client, "t", 0) == STORAGE_ERROR, "a refusal")
            assert move(client, dirs.a, "t") == "none"
            wait_for(lambda: append(client, "t", 0) == "none", "an accepted record")


def test_a_partition_moves_and_returns_under_load(dirs: Directories) -> None:
    dirs.broker.start()
    with WireClient(dirs.broker.bootstrap) as client:
        dirs.create(client, "t", 1)
        home = dirs.directory_of("t-0")
        writer = Writer(dirs.broker.bootstrap, "t")
        for target in (dirs.other(home), home, dirs.other(home)):
            writer.wait_for_more()
            assert move(client, target, "t") == "none"
            wait_for((target / "t-0").exists, "the partition in its new directory")
        writer.wait_for_more()
        writer.stop()
        assert not writer.refused
        wait_for(lambda: not (home / "t-0").exists() and not list(dirs.a.glob("t-0.*")), "removal of the old files")
        dirs.broker.restart()
    with WireClient(dirs.broker.bootstrap) as client:
        assert values(client, "t") == [b"%d" % number for number in range(writer.count)]
        assert dirs.directory_of("t-0") == dirs.other(home)


def test_a_move_is_described_cancelled_and_dropped_by_a_restart(slow: Directories) -> None:
    slow.broker.start()
    with WireClient(slow.broker.bootstrap) as client:
        slow.create(client, "t", 1)
        for number in range(5):
            assert append(client, "t", number, size=60_000) == "none"
        home, target = slow.directory_of("t-0"), slow.other(slow.directory_of("t-0"))
        assert move(client, target, "t") == "none"
        [copy] = wait_for(lambda: copies(client, target), "a description of the copy")
        assert 0 < copy["offset_lag"] <= 5
        assert described(client, home)["topics"][0]["partitions"][0]["partition_size"] > 300_000
        assert move(client, home, "t") == "none"
        wait_for(lambda: not list(target.glob("t-0.*")), "removal of the copy")
        assert not copies(client, target)

        assert move(client, target, "t") == "none"
        wait_for(lambda: list(target.glob("t-0.*-future/*.log")), "data in the copy")
        slow.broker.restart()
    with WireClient(slow.broker.bootstrap) as client:
        assert len(values(client, "t")) == 5
        assert slow.directory_of("t-0") == home
        assert not copies(client, target)
    assert "the unfinished copy of an interrupted move" in slow.broker.log()


def test_an_impossible_move_is_refused(dirs: Directories) -> None:
    dirs.broker.start()
    with WireClient(dirs.broker.bootstrap) as client:
        dirs.create(client, "t", 1)
        assert move(client, dirs.directory_of("t-0"), "t") == "none"
        assert move(client, dirs.a.parent, "t") == "log_dir_not_found"
        assert move(client, dirs.a, "t", 7) == "unknown_topic_or_partition"


def test_a_partition_is_created_in_the_directory_assigned_beforehand(dirs: Directories) -> None:
    dirs.broker.start()
    with WireClient(dirs.broker.bootstrap) as client:
        for partition in range(4):
            assert move(client, dirs.b, "t", partition) == "unknown_topic_or_partition"
        dirs.create(client, "t", 4)
        assert len(list(dirs.b.glob("t-?"))) == 4


def test_an_unmounted_metadata_directory_starts_no_new_cluster(dirs: Directories) -> None:
    dirs.broker.start()
    with WireClient(dirs.broker.bootstrap) as client:
        dirs.create(client, "t", 2)
        assert produce(client, "t", 0) == produce(client, "t", 1) == "none"
    dirs.broker.sigterm()
    dirs.a.rename(dirs.a.with_name("unmounted"))
    for _ in range(2):
        with pytest.raises(AssertionError, match=r"metadata\.db.*a is empty: perhaps a file system is not mounted"):
            dirs.broker.start()
        assert not dirs.a.exists()
    dirs.a.with_name("unmounted").rename(dirs.a)
    dirs.broker.start()
    with WireClient(dirs.broker.bootstrap) as client:
        assert values(client, "t", 0) == values(client, "t", 1) == [b"t"]


def test_partitions_of_an_unmounted_directory_are_offline_until_it_is_mounted(dirs: Directories) -> None:
    dirs.broker.start()
    with WireClient(dirs.broker.bootstrap) as client:
        dirs.create(client, "t", 2)
        assert produce(client, "t", 0) == produce(client, "t", 1) == "none"
    online, offline = (0, 1) if dirs.directory_of("t-0") == dirs.a else (1, 0)
    dirs.broker.sigterm()
    dirs.b.rename(dirs.b.with_name("unmounted"))
    for _ in range(2):
        dirs.broker.start()
        with WireClient(dirs.broker.bootstrap) as client:
            assert values(client, "t", online) == [b"t"]
            assert produce(client, "t", offline) == STORAGE_ERROR
        dirs.broker.sigterm()
    assert "b was empty when it was first used: mount the file system" in dirs.broker.log()

    (dirs.b / ".headrace_new_directory").unlink()
    dirs.broker.start()
    with WireClient(dirs.broker.bootstrap) as client:
        assert values(client, "t", offline) == []
    dirs.broker.sigterm()
    shutil.rmtree(dirs.b)
    dirs.b.with_name("unmounted").rename(dirs.b)
    dirs.broker.start()
    with WireClient(dirs.broker.bootstrap) as client:
        assert values(client, "t", offline) == [b"t"]


def run(*command: object) -> str:
    return subprocess.run([str(item) for item in command], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def failing_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on a loop device that becomes read-only at the first error: see `fail`."""
    if os.geteuid() != 0 or not shutil.which("losetup") or not shutil.which("mkfs.ext4"):
        pytest.skip("a failing disk needs root, losetup and mkfs.ext4")
    image, mounted = tmp_path / "image", tmp_path / "mounted"
    mounted.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    run("mkfs.ext4", "-q", "-F", image)
    try:
        device = run("losetup", "-f", "--show", image)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no loop device: {error.stderr}")
    try:
        run("mount", "-o", "errors=remount-ro", device, mounted)
        yield mounted
    finally:
        subprocess.run(["umount", "-l", mounted], check=False, capture_output=True)
        run("losetup", "-d", device)


def fail(mounted: Path) -> None:
    """Trigger a file system error in the kernel."""
    device = next(line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if f" {mounted} " in line)
    Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("failed on purpose")


def test_a_failed_disk_takes_only_its_own_partitions_offline(tmp_path: Path, failing_disk: Path) -> None:
    dirs = Directories(tmp_path, b=failing_disk / "b")
    try:
        dirs.broker.start()
        with WireClient(dirs.broker.bootstrap) as client:
            dirs.create(client, "t", 2)
            good, bad = (0, 1) if dirs.directory_of("t-0") == dirs.a else (1, 0)
            assert produce(client, "t", good) == produce(client, "t", bad) == "none"
            fail(failing_disk)
            wait_for(lambda: produce(client, "t", bad) == STORAGE_ERROR, "the failure")
            for _ in range(20):
                assert produce(client, "t", bad) == STORAGE_ERROR
                assert fetched(client, "t", bad)["error_code"] == STORAGE_ERROR
            assert produce(client, "t", good) == "none"
            assert values(client, "t", good) == [b"t", b"t"]
            assert described(client, dirs.b)["error_code"] == STORAGE_ERROR
            assert described(client, dirs.a)["error_code"] == "none"
            assert move(client, dirs.b, "t", good) == STORAGE_ERROR
            dirs.create(client, "new", 2)
            assert produce(client, "new", 0) == produce(client, "new", 1) == "none"
        errors = [line for line in dirs.broker.log().splitlines() if f"Log directory {dirs.b} has failed" in line]
        assert len(errors) == 1
        assert "1 partition offline (KAFKA_STORAGE_ERROR)" in errors[0]
        # the failed request, and at most one more before the partition is offline
        assert len([line for line in dirs.broker.log().splitlines() if "Produce to" in line]) <= 2
        assert dirs.broker.sigterm() == 0
    finally:
        dirs.broker.close()


def test_other_partitions_are_served_after_the_metadata_disk_fails(tmp_path: Path, failing_disk: Path) -> None:
    dirs = Directories(tmp_path, a=failing_disk / "a")
    try:
        dirs.broker.start()
        with WireClient(dirs.broker.bootstrap) as client:
            dirs.create(client, "t", 2)
            good, bad = (0, 1) if dirs.directory_of("t-0") == dirs.b else (1, 0)
            fail(failing_disk)
            wait_for(lambda: produce(client, "t", bad) == STORAGE_ERROR, "the failure")
            assert produce(client, "t", good) == "none"
            assert create(client, "u") == STORAGE_ERROR
            assert values(client, "t", good) == [b"t"]
        assert dirs.broker.sigterm() == 0
        assert "Traceback" not in dirs.broker.log()
        with pytest.raises(AssertionError, match=r"metadata\.db.*Restore that directory and start again"):
            dirs.broker.start()
    finally:
        dirs.broker.close()


def test_a_directory_that_cannot_be_listed_takes_only_its_own_partitions_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    settings: dict[str, Sequence[str]] = {"log.dirs": [str(a), str(b)]}
    with Broker(settings) as broker, WireClient(broker.bootstrap) as client:
        create(client, "t", 2)
    online, offline = (0, 1) if (a / "t-0").exists() else (1, 0)
    listed = Path.iterdir

    def listing(path: Path) -> Iterator[Path]:
        if path == b:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return iter(listed(path))

    monkeypatch.setattr(Path, "iterdir", listing)
    with Broker(settings) as broker, WireClient(broker.bootstrap) as client:
        assert produce(client, "t", online) == "none"
        assert produce(client, "t", offline) == STORAGE_ERROR
        assert described(client, b)["error_code"] == STORAGE_ERROR
