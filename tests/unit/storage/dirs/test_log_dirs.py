import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.partition_dir import DELETE_SUFFIX, parse_name, retired_name
from headrace.storage.log.config import LogConfig
from headrace.storage.log.log import Log
from headrace.types import TopicPartition
from tests.unit.storage.failing_calls import refuse
from tests.unit.storage.logs import NOW, SMALL, append, offsets, read_all

TOPIC_ID = UUID(int=77)
CONFIG = LogConfig()
DASHES = TopicPartition("a-1-b.c_d", 12)


def partition(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def open_dirs(*paths: Path, broker_id: int = 0, cluster_id: str | None = None) -> LogDirs:
    return LogDirs.open(paths, broker_id=broker_id, cluster_id=cluster_id)


def create(dirs: LogDirs, *partitions: TopicPartition) -> None:
    for item in partitions:
        append(dirs.create(item, TOPIC_ID, CONFIG, now_ms=NOW), 3)


def reopen(*paths: Path) -> LogDirs:
    dirs = open_dirs(*paths)
    for item in dirs.partitions():
        dirs.load(item, CONFIG, now_ms=NOW)
    return dirs


def crash(dirs: LogDirs) -> None:
    """Release the locks, as if the process had died."""
    dirs.logs.clear()
    for directory in dirs.owned.working:
        directory.unlock()


class TestOwnership:
    def test_a_new_directory_gets_an_identity_that_stays(self, tmp_path: Path) -> None:
        dirs = open_dirs(tmp_path / "one", tmp_path / "two", broker_id=4)
        assert len(dirs.owned.cluster_id) == 22
        assert dirs.directories == (tmp_path / "one", tmp_path / "two")
        properties = (tmp_path / "two" / "meta.properties").read_text().splitlines()
        assert {"version=1", "node.id=4", f"cluster.id={dirs.owned.cluster_id}"} <= set(properties)
        dirs.close({})
        again = open_dirs(tmp_path / "two", tmp_path / "new", broker_id=4)
        assert again.owned.cluster_id == dirs.owned.cluster_id
        assert f"cluster.id={dirs.owned.cluster_id}" in (tmp_path / "new" / "meta.properties").read_text()
        again.close({})

    def test_another_broker_in_this_process_is_refused(self, tmp_path: Path) -> None:
        dirs = open_dirs(tmp_path)
        with pytest.raises(KafkaError, match=f"{tmp_path} is in use by another broker"):
            open_dirs(tmp_path)
        dirs.close({})
        open_dirs(tmp_path).close({})

    def test_a_duplicate_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "one")
        with pytest.raises(KafkaError, match=f"log.dirs contains {tmp_path / 'one'} twice"):
            open_dirs(tmp_path / "one", tmp_path / "link")

    def test_a_directory_of_another_cluster_is_refused_and_the_locks_are_released(self, tmp_path: Path) -> None:
        open_dirs(tmp_path / "one", cluster_id="mine").close({})
        with pytest.raises(KafkaError, match="belongs to cluster mine, not other") as raised:
            open_dirs(tmp_path / "two", tmp_path / "one", cluster_id="other")
        assert raised.value.code == ErrorCode.inconsistent_cluster_id
        open_dirs(tmp_path / "two", cluster_id="other").close({})

    def test_a_directory_of_another_broker_is_refused(self, tmp_path: Path) -> None:
        open_dirs(tmp_path, broker_id=1).close({})
        with pytest.raises(KafkaError, match=r"belongs to broker 1, not 2: set broker.id=1"):
            open_dirs(tmp_path, broker_id=2)

    def test_a_directory_that_cannot_be_created_is_offline(self, tmp_path: Path) -> None:
        blocked = tmp_path / "file"
        blocked.write_text("")
        loop = tmp_path / "loop"
        loop.symlink_to(loop)
        dirs = open_dirs(tmp_path / "good", blocked / "bad", loop)
        assert dirs.directories == (tmp_path / "good",)
        assert list(dirs.owned.offline) == [blocked / "bad", loop]
        dirs.close({})
        with pytest.raises(KafkaError, match="no log directory can be used"):
            open_dirs(blocked / "bad")


class TestPlacing:
    def test_a_new_partition_goes_to_the_directory_with_the_fewest(self, tmp_path: Path) -> None:
        dirs = open_dirs(tmp_path / "a", tmp_path / "b")
        create(dirs, *map(partition, range(4)))
        assert [len(list(path.glob("t-*"))) for path in dirs.directories] == [2, 2]
        for item in [each for each, log in dirs.logs.items() if log.directory.parent == tmp_path / "a"]:
            dirs.delete(item, now_ms=NOW)
        create(dirs, *map(partition, range(4, 6)))
        assert {dirs.logs[partition(one)].directory.parent for one in (4, 5)} == {tmp_path / "a"}
        dirs.close({})

    def test_a_partition_is_created_once_with_its_topic_id(self, tmp_path: Path) -> None:
        dirs = open_dirs(tmp_path)
        create(dirs, DASHES)
        assert set(dirs.partitions()) == {DASHES}
        assert dirs.found.topic_id(DASHES) == TOPIC_ID
        with pytest.raises(KafkaError, match=r"a-1-b.c_d-12 already has a log"):
            create(dirs, DASHES)
        dirs.close({})

    def test_a_partition_in_two_directories_is_refused(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            (tmp_path / name / "t-0").mkdir(parents=True)
        with pytest.raises(KafkaError, match=r"t-0 is in .*b/t-0 and in .*a/t-0: move the older one out"):
            open_dirs(tmp_path / "a", tmp_path / "b")


def test_flushing_and_checkpointing_run_in_parallel_with_appends_and_deletions(tmp_path: Path) -> None:
    config = replace(SMALL, retention_bytes=20_000, file_delete_delay_ms=0)
    dirs = open_dirs(tmp_path)
    done = threading.Event()

    def write_back() -> None:
        while not done.wait(0.001):
            dirs.flush_rolled()
            dirs.checkpoint(dict.fromkeys(tuple(dirs.logs), 1))
            dirs.remove_deleted_files(NOW)

    with ThreadPoolExecutor(2) as pool:
        background = [pool.submit(write_back) for _ in range(2)]
        for turn in range(3):
            log = dirs.create(DASHES, TOPIC_ID, config, now_ms=NOW)
            for _ in range(100):
                append(log, 3)
            log.apply_retention(NOW, log.log_end_offset)
            log.truncate_to(280)
            assert offsets(read_all(log)) == list(range(log.log_start_offset, 279))
            if turn < 2:
                dirs.delete(DASHES, now_ms=NOW)
        done.set()
        for item in background:
            item.result()
    crash(dirs)
    dirs = reopen(tmp_path)
    assert offsets(read_all(dirs.logs[DASHES]))[-1] == 278
    dirs.close({})


@pytest.mark.parametrize("clean", [True, False])
def test_a_restart_finds_every_log(tmp_path: Path, clean: bool) -> None:
    dirs = open_dirs(tmp_path / "a", tmp_path / "b")
    create(dirs, DASHES, *map(partition, range(5)))
    dirs.logs[DASHES].advance_log_start(2)
    marks = dict.fromkeys(dirs.logs, 3)
    if clean:
        dirs.close(marks)
    else:
        dirs.checkpoint(marks)
        crash(dirs)
    dirs = reopen(tmp_path / "a", tmp_path / "b")
    assert set(dirs.logs) == {DASHES, *map(partition, range(5))}
    assert all(log.log_end_offset == 3 for log in dirs.logs.values())
    assert all(log.flusher.recovery_point == (3 if clean else 0) for log in dirs.logs.values())
    assert offsets(read_all(dirs.logs[DASHES])) == [2]
    assert all(dirs.high_watermark(item) == 3 for item in dirs.logs)
    dirs.close(marks)


def test_the_clean_shutdown_file_is_valid_for_one_start(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    create(dirs, DASHES)
    dirs.close({})
    mark = tmp_path / ".kafka_cleanshutdown"
    assert mark.read_text() == '{"version":0,"brokerEpoch":-1}'
    dirs = reopen(tmp_path)
    assert not mark.exists()
    crash(dirs)
    dirs = reopen(tmp_path)
    assert dirs.logs[DASHES].flusher.recovery_point == 3
    dirs.close({})


def test_a_log_that_is_not_loaded_keeps_its_checkpoints_and_prevents_a_clean_shutdown(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    create(dirs, partition(0), partition(1))
    dirs.logs[partition(1)].advance_log_start(2)
    dirs.close({partition(1): 3})
    dirs = open_dirs(tmp_path)
    dirs.load(partition(0), CONFIG, now_ms=NOW)
    dirs.close({})
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    dirs = reopen(tmp_path)
    assert dirs.logs[partition(1)].log_start_offset == 2
    assert dirs.high_watermark(partition(1)) == 3
    dirs.close({})


def test_damaged_checkpoints_only_cause_a_recovery(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    create(dirs, DASHES)
    crash(dirs)
    for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"):
        (tmp_path / name).write_text("what?")
    dirs = reopen(tmp_path)
    assert offsets(read_all(dirs.logs[DASHES])) == [0, 1, 2]
    dirs.close({})


def test_the_error_of_a_log_that_cannot_be_opened_has_the_reason(tmp_path: Path) -> None:
    dirs = open_dirs(tmp_path)
    create(dirs, partition(0), partition(1))
    dirs.close({})
    broken = tmp_path / "t-0" / "00000000000000000000.index"
    broken.unlink()
    broken.mkdir()
    dirs = open_dirs(tmp_path)
    dirs.load(partition(1), CONFIG, now_ms=NOW)
    with pytest.raises(
        KafkaError, match=f"cannot open t-0 in {tmp_path}/t-0: {broken} is not a regular file"
    ) as raised:
        dirs.load(partition(0), CONFIG, now_ms=NOW)
    assert raised.value.code == ErrorCode.kafka_storage_error
    dirs.close({})


def test_the_log_says_what_to_do_if_a_failed_fsync_cannot_be_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dirs = open_dirs(tmp_path)
    (tmp_path / ".headrace_boot").unlink(missing_ok=True)
    (tmp_path / ".headrace_boot").mkdir()

    dirs.owned.distrust(dirs.owned.working[0])

    assert f"Delete {tmp_path / '.headrace_boot'} before the next start" in caplog.text
    dirs.close({})


def test_an_incomplete_copy_without_its_original_is_ignored_with_advice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_dirs(tmp_path).close({})
    copy = tmp_path / f"t-0.{'0' * 32}-future"
    copy.mkdir()

    dirs = open_dirs(tmp_path)

    assert f"Ignoring {copy}" in caplog.text
    assert "restore it, and restart the broker" in caplog.text
    dirs.close({})


def test_a_restart_of_the_machine_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = tmp_path / "boot_id"
    boot.write_text("first")
    monkeypatch.setattr("headrace.storage.dirs.log_dir._BOOT_ID", boot)
    seen = []
    for life in ("first", "first", "second"):
        boot.write_text(life)
        dirs = open_dirs(tmp_path / "data")
        seen.append(dirs.owned.working[0].kernel_survived)
        dirs.close({})
    boot.unlink()
    dirs = open_dirs(tmp_path / "data")
    seen.append(dirs.owned.working[0].kernel_survived)
    dirs.close({})
    assert seen == [False, True, False, False]


def test_a_truncation_that_fails_halfway_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dirs = open_dirs(tmp_path / "one", tmp_path / "two")
    failed: list[tuple[Path, str]] = []
    dirs.on_failure = lambda directory, reason: failed.append((directory, reason))
    create(dirs, partition(0), partition(1))
    log = dirs.logs[partition(0)]

    monkeypatch.setattr("headrace.storage.files.log_file.LogFile.truncate", refuse)
    with pytest.raises(
        KafkaError, match=r"cannot truncate t-0 in .*: t-0 is truncated only in part: No space left on device"
    ):
        log.truncate_to(1)

    ((directory, reason),) = failed
    assert directory == log.directory.parent
    assert "t-0 is truncated only in part" in reason
    assert dirs.logs.keys() == {partition(1)}
    dirs.close({})


class TestDeleting:
    def test_the_name_is_free_at_once_and_the_files_are_removed_later(self, tmp_path: Path) -> None:
        dirs = open_dirs(tmp_path)
        create(dirs, DASHES)
        part = dirs.logs[DASHES].reader.read(0, 100, upto_offset=3)
        dirs.delete(DASHES, now_ms=NOW)
        (deleted,) = tmp_path.glob("*-delete")
        assert deleted.name.startswith("a-1-b.c_d-12.")
        create(dirs, DASHES)
        dirs.remove_deleted_files(NOW + CONFIG.file_delete_delay_ms - 1)
        assert deleted.exists()
        assert part is not None
        assert part.read()
        dirs.remove_deleted_files(NOW + CONFIG.file_delete_delay_ms)
        assert not deleted.exists()
        assert offsets(read_all(dirs.logs[DASHES])) == [0, 1, 2]
        dirs.close({})

    def test_deleted_directories_of_an_earlier_process_are_removed(self, tmp_path: Path) -> None:
        dirs = open_dirs(tmp_path)
        create(dirs, DASHES)
        dirs.delete(DASHES, now_ms=NOW)
        dirs.close({})
        dirs = reopen(tmp_path)
        assert not dirs.logs
        dirs.remove_deleted_files(NOW)
        dirs.remove_deleted_files(NOW + CONFIG.file_delete_delay_ms)
        assert not list(tmp_path.glob("*-delete"))
        dirs.close({})

    def test_a_new_partition_of_the_same_name_starts_without_old_offsets(self, tmp_path: Path) -> None:
        dirs = open_dirs(tmp_path)
        create(dirs, DASHES)
        dirs.logs[DASHES].advance_log_start(3)
        dirs.checkpoint({DASHES: 3})
        dirs.delete(DASHES, now_ms=NOW)
        create(dirs, DASHES)
        crash(dirs)
        dirs = reopen(tmp_path)
        assert dirs.logs[DASHES].log_start_offset == 0
        assert dirs.high_watermark(DASHES) == 0
        dirs.close({})

    def test_the_longest_topic_name_fits(self) -> None:
        name = retired_name(TopicPartition("t" * 249, 7), DELETE_SUFFIX)
        assert len(name) == 255
        assert name.endswith("-delete")


def test_a_directory_name_is_parsed() -> None:
    assert parse_name("t-0") == TopicPartition("t", 0)
    assert parse_name("a-1-b.c_d-12") == DASHES
    assert parse_name("a--0") == TopicPartition("a-", 0)
    others = ["t-01", "t", "-0", "t-x", "lost+found", "täg-0"]
    others += [f"t-0.0123456789abcdef0123456789abcdef-{suffix}" for suffix in ("delete", "future", "stray")]
    assert [name for name in others if parse_name(name)] == []


def test_unknown_directories_and_files_stay(tmp_path: Path) -> None:
    for name in ("lost+found", "t-0.0123456789abcdef0123456789abcdef-future", "backup"):
        (tmp_path / name).mkdir()
    (tmp_path / "t-9").write_text("a file")
    dirs = reopen(tmp_path)
    assert not dirs.logs
    dirs.close({})
    assert {"lost+found", "backup", "t-9", "t-0.0123456789abcdef0123456789abcdef-future"} <= {
        path.name for path in tmp_path.iterdir()
    }


def test_logs_are_closed_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dirs = open_dirs(tmp_path)
    create(dirs, partition(0), partition(1))
    both = threading.Barrier(2, timeout=5)
    close = Log.close

    def close_with_the_other(log: Log) -> None:
        both.wait()
        close(log)

    monkeypatch.setattr(Log, "close", close_with_the_other)
    dirs.close({})
    assert [item.log_end_offset for item in reopen(tmp_path).logs.values()] == [3, 3]
