"""A log directory whose disk fails during a start is offline; the others are used."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.log_dir import BOOT_FILE
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.partition_dir import DELETE_SUFFIX, future_name, replaced_name
from headrace.storage.files.atomic_file import sync_directory
from headrace.types import TopicPartition

MOVED = TopicPartition("moved", 0)
ID = "0" * 32


def failing(method: Callable[..., Any], code: int, *paths: Path) -> Callable[..., Any]:
    """Return `method` of a path, which fails for `paths`."""

    def called(path: Path, *args: Any, **options: Any) -> Any:
        if path in paths:
            raise OSError(code, os.strerror(code), str(path))
        return method(path, *args, **options)

    return called


@pytest.fixture
def a(tmp_path: Path) -> Path:
    (tmp_path / "a" / "t-0").mkdir(parents=True)
    return tmp_path / "a"


@pytest.fixture
def b(tmp_path: Path) -> Path:
    (tmp_path / "b" / "t-1").mkdir(parents=True)
    return tmp_path / "b"


def test_a_directory_that_cannot_be_listed_is_offline(
    a: Path, b: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", failing(Path.iterdir, errno.EIO, b))
        dirs = LogDirs.open([a, b], broker_id=0)

    assert dirs.directories == (a,)
    assert dirs.owned.offline == {b: "Input/output error"}
    assert list(dirs.owned.disk_space) == [a]
    assert list(dirs.partitions()) == [TopicPartition("t", 0)]
    assert f"Log directory {b} cannot be used (Input/output error); its partitions are offline" in caplog.messages
    assert [path.name for path in b.iterdir()] == ["t-1"]
    dirs.close({})
    LogDirs.open([a, b], broker_id=0).close({})


def test_no_start_is_possible_if_no_directory_can_be_listed(a: Path, b: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", failing(Path.iterdir, errno.EIO, a, b))
        with pytest.raises(KafkaError) as raised:
            LogDirs.open([a, b], broker_id=0)

    assert raised.value.code == ErrorCode.kafka_storage_error
    assert str(raised.value).endswith(f"{a}: Input/output error; {b}: Input/output error")
    LogDirs.open([a, b], broker_id=0).close({})


def test_a_new_directory_whose_disk_fails_is_offline(a: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = tmp_path / "new"
    sync = failing(sync_directory, errno.EROFS, new)
    monkeypatch.setattr("headrace.storage.dirs.log_dir.sync_directory", sync)
    monkeypatch.setattr(Path, "unlink", failing(Path.unlink, errno.EROFS, new / ".lock"))

    dirs = LogDirs.open([a, new], broker_id=0)

    assert dirs.owned.offline == {new: "Read-only file system"}
    dirs.close({})


class TestInterruptedMove:
    """From `a` to `b`."""

    @pytest.fixture(autouse=True)
    def interrupted(self, a: Path, b: Path) -> None:
        (a / replaced_name(MOVED, ID)).mkdir()
        (b / future_name(MOVED, ID)).mkdir()

    def test_a_disk_that_fails_before_its_completion_is_offline(
        self, a: Path, b: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        deleted = b / f"gone-0.{ID}{DELETE_SUFFIX}"
        deleted.mkdir()
        sync = failing(sync_directory, errno.EIO, b)
        monkeypatch.setattr("headrace.storage.dirs.found_partitions.sync_directory", sync)

        dirs = LogDirs.open([a, b], broker_id=0)

        assert dirs.directories == (a,)
        assert list(dirs.partitions()) == [TopicPartition("t", 0)]
        assert (b / BOOT_FILE).read_text() == "an fsync failed\n"
        for now_ms in (0, 3_600_000):
            dirs.remove_deleted_files(now_ms)
        assert deleted.exists()
        dirs.close({})

    def test_a_file_with_the_partitions_name_prevents_the_start(self, a: Path, b: Path) -> None:
        (b / str(MOVED)).write_text("")

        dirs = LogDirs.survey([a, b], broker_id=0)
        with pytest.raises(KafkaError, match="cannot complete an interrupted move"):
            dirs.take_over()
        dirs.close({})


class TestDirectoriesOfKafka:
    """The first start reads the beginning of every segment."""

    @pytest.fixture(params=["listing", "opening", "access"])
    def fail(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
        """A function that makes the disk of a partition directory fail."""

        def fail(partition: Path) -> None:
            segment = partition / f"{0:020}.log"
            segment.write_bytes(b"")
            if request.param == "listing":
                monkeypatch.setattr(Path, "iterdir", failing(Path.iterdir, errno.EIO, partition))
            elif request.param == "opening":
                monkeypatch.setattr(Path, "open", failing(Path.open, errno.EIO, segment))
            else:
                access = os.access
                monkeypatch.setattr(os, "access", lambda path, mode: path != segment and access(path, mode))
                monkeypatch.setattr(Path, "stat", failing(Path.stat, errno.EIO, segment))

        return fail

    def test_one_whose_disk_fails_is_offline(
        self,
        a: Path,
        b: Path,
        fail: Callable[[Path], None],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        fail(b / "t-1")
        dirs = LogDirs.survey([a, b], broker_id=0)

        dirs.leave_out(dirs.found.check_readable())

        assert dirs.directories == (a,)
        assert list(dirs.partitions()) == [TopicPartition("t", 0)]
        assert list(dirs.owned.offline) == [b]
        assert f"Log directory {b} cannot be used" in caplog.text
        dirs.take_over()
        dirs.close({})
        monkeypatch.undo()
        assert [path.name for path in b.iterdir()] == ["t-1"]

    @pytest.mark.parametrize("fail", ["opening"], indirect=True)
    def test_a_copy_of_its_partition_on_another_disk_is_kept(
        self, a: Path, b: Path, fail: Callable[[Path], None], caplog: pytest.LogCaptureFixture
    ) -> None:
        fail(b / "t-1")
        copy = a / future_name(TopicPartition("t", 1), ID)
        copy.mkdir()
        dirs = LogDirs.survey([a, b], broker_id=0)

        dirs.leave_out(dirs.found.check_readable())

        dirs.take_over()
        for now_ms in (0, 3_600_000):
            dirs.remove_deleted_files(now_ms)
        assert copy.exists()
        assert f"Keeping {copy}" in caplog.text
        dirs.close({})

    @pytest.mark.parametrize("fail", ["listing"], indirect=True)
    def test_no_start_is_possible_if_all_disks_fail(self, b: Path, fail: Callable[[Path], None]) -> None:
        fail(b / "t-1")
        dirs = LogDirs.survey([b], broker_id=0)
        with pytest.raises(KafkaError, match="Input/output error"):
            dirs.leave_out(dirs.found.check_readable())

    def test_another_error_prevents_the_start(self, a: Path, b: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Path, "iterdir", failing(Path.iterdir, errno.EMFILE, b / "t-1"))
        dirs = LogDirs.survey([a, b], broker_id=0)
        with pytest.raises(KafkaError, match=f"cannot read {b / 't-1'}"):
            dirs.found.check_readable()
        dirs.close({})
