"""A truncation that fails at any change of files changes nothing, or takes the log directory offline."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.storage.files.disk_failures import is_disk_failure
from headrace.storage.log.leader_epochs import LeaderEpochs
from headrace.storage.log.log import Log
from headrace.storage.log.recovery import drop_segments
from headrace.storage.log.segment import Segment
from headrace.storage.log.segment_files import DELETED_SUFFIX
from headrace.storage.log.state import LogState
from tests.support.waiting import wait_for
from tests.unit.storage.failing_calls import FailingCall
from tests.unit.storage.logs import NOW, append, offsets, open_log, read_all

START, END = 2, 18
TRUNCATIONS: Final[dict[str, Callable[[Log], None]]] = {
    "within a segment": lambda log: log.truncate_to(11),
    "to the log start": lambda log: log.truncate_to(START),
    "to a later start": lambda log: log.truncate_fully_and_start_at(80),
}


def filled(directory: Path) -> Log:
    """Return a flushed log of three segments with three leader epochs, whose bounds are saved in a file."""
    log = unflushed(directory)
    log.flusher.flush()
    log.advance_log_start(START)
    bounds = bounds_file(log)

    def save(changed: Log) -> None:
        bounds.write_text(f"{changed.flusher.recovery_point_to_save} {changed.log_start_offset}")

    log.save_bounds = save
    save(log)
    return log


def bounds_file(log: Log) -> Path:
    return log.directory.with_suffix(".bounds")


def unflushed(directory: Path) -> Log:
    log = open_log(directory)
    for place in range(END // 2):
        append(log, 2, epoch=place // 3, timestamp=NOW + place, value=b"v" * 240)
    assert [segment.base_offset for segment in log.segments.ordered] == [0, 6, 12]
    return log


def content(log: Log) -> tuple[Any, ...]:
    return (
        log.log_start_offset,
        log.log_end_offset,
        offsets(read_all(log)),
        log.leader_epochs.entries,
        log.reader.max_timestamp(),
        sorted(path.name for path in log.directory.iterdir() if path.suffix != DELETED_SUFFIX),
    )


@pytest.mark.parametrize("log_start_offset", [START, 9])
def test_the_whole_batch_that_contains_the_offset_is_checked_by_the_next_recovery(
    log_start_offset: int, tmp_path: Path
) -> None:
    log = filled(tmp_path / "log")
    log.advance_log_start(log_start_offset)
    saved: list[tuple[int, int]] = []
    log.save_bounds = lambda changed: saved.append((changed.flusher.recovery_point_to_save, changed.log_start_offset))
    log.truncate_to(9)
    assert log.log_end_offset == 8
    assert saved == [(8, min(log_start_offset, 8))]


@pytest.mark.parametrize("truncate", TRUNCATIONS.values(), ids=TRUNCATIONS.keys())
def test_a_truncation_fails_before_any_change_or_takes_the_directory_offline(
    truncate: Callable[[Log], None], tmp_path: Path
) -> None:
    whole = content(filled(tmp_path / "whole"))
    truncated = filled(tmp_path / "truncated")
    truncate(truncated)
    expected, expected_bounds = content(truncated), bounds_file(truncated).read_text()
    failures: list[OSError] = []

    def note(_: LogState, error: OSError) -> None:
        failures.append(error)

    for place in range(1, 100):
        log = filled(tmp_path / str(place))
        log.state.on_disk_error = note
        failures.clear()
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingCall(patch, place)
            code = failing_code(truncate, log)
        if failing.left > 0:
            break
        assert code in (None, ErrorCode.kafka_storage_error)
        if code is None:  # it works without this call
            assert not failures
        elif is_disk_failure(failures[0]):
            assert "truncated only in part" in str(failures[0])
            saved, save = log.flusher.recovery_point, log.save_bounds
            log = open_log(log.directory, recovery_point=saved, log_start_offset=log.log_start_offset)
            log.save_bounds = save
        else:
            assert content(log) == whole, f"call {place}"
        truncate(log)
        assert content(log) == expected, f"call {place}"
        assert bounds_file(log).read_text() == expected_bounds, f"call {place}"
        log.close()
    assert place > 20


def test_a_truncation_that_is_refused_keeps_the_recovery_point(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    path = log.segments.ordered[1].path
    damaged = bytearray(path.read_bytes())
    damaged[16] = 9  # the magic byte of the first batch
    path.write_bytes(damaged)
    assert failing_code(lambda log: log.truncate_to(log.segments.ordered[1].base_offset + 1), log)
    append(log, 2)
    log.flusher.flush()
    assert log.flusher.recovery_point == log.log_end_offset == END + 2


def test_a_flush_ignores_files_that_a_truncation_has_just_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = unflushed(tmp_path / "log")
    sync, began, deleted = Segment.sync_indexes, threading.Event(), threading.Event()

    def slow(segment: Segment) -> None:
        began.set()
        assert deleted.wait(10)
        sync(segment)

    def removing(directory: Path, segments: Sequence[Segment]) -> list[Path]:
        dropped = drop_segments(directory, segments)
        deleted.set()
        flush.result(10)  # while the log still lists the deleted segments
        return dropped

    monkeypatch.setattr(Segment, "sync_indexes", slow)
    monkeypatch.setattr("headrace.storage.log.log.drop_segments", removing)
    with ThreadPoolExecutor(1) as threads:
        flush = threads.submit(log.flusher.flush)
        assert began.wait(10)
        log.truncate_to(2)


def test_a_flush_that_misses_a_kept_segment_does_not_move_the_recovery_point(tmp_path: Path) -> None:
    log = unflushed(tmp_path / "log")
    log.flusher.recovery_point = first = log.segments.ordered[1].base_offset
    path = log.segments.ordered[1].index.path
    path.rename(tmp_path / "aside")
    with log.flusher.truncating_to(log.segments.ordered[2].base_offset):
        log.flusher.flush()
        assert log.flusher.recovery_point == first
    (tmp_path / "aside").rename(path)


def test_a_flush_that_begins_after_files_were_deleted_ignores_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = unflushed(tmp_path / "log")

    def removing(directory: Path, segments: Sequence[Segment]) -> list[Path]:
        for segment in segments:
            segment.close_file()
        dropped = drop_segments(directory, segments)
        log.flusher.flush()  # while the log still lists the deleted segments
        return dropped

    monkeypatch.setattr("headrace.storage.log.log.drop_segments", removing)
    log.truncate_to(2)


def failing_code(truncate: Callable[[Log], None], log: Log) -> ErrorCode | None:
    try:
        truncate(log)
    except KafkaError as error:
        return error.code
    return None


@pytest.mark.parametrize("kind", ["within a segment", "to a later start"])
def test_a_truncation_leaves_the_removal_of_segments_to_another_thread(kind: str, tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    files = {path.stat().st_ino for path in log.directory.glob("*.log")}
    TRUNCATIONS[kind](log)
    assert {path.stat().st_ino for path in log.directory.iterdir()} >= files
    now_ms = NOW
    for _ in range(2):
        log.deleted_files.remove_due(now_ms)
        now_ms += log.config.file_delete_delay_ms
    assert not log.deleted_files
    assert not list(log.directory.glob("*.deleted"))


@pytest.mark.parametrize("offset", [4, 9])
def test_a_lost_time_index_takes_the_directory_offline(tmp_path: Path, offset: int) -> None:
    log = filled(tmp_path / "log")
    failures: list[OSError] = []
    log.state.on_disk_error = lambda _, error: failures.append(error)
    for path in log.directory.glob("*.timeindex"):
        os.truncate(path, 0)
    with pytest.raises(KafkaError, match="truncated only in part"):
        log.truncate_to(offset)
    assert [is_disk_failure(failure) for failure in failures] == [True]


def test_a_flush_that_waited_during_a_truncation_does_not_move_the_recovery_point(tmp_path: Path) -> None:
    log = unflushed(tmp_path / "log")
    with log.flusher._flushing:
        flush = threading.Thread(target=log.flusher.flush)
        flush.start()
        wait_for(lambda: _waits_for_lock(flush), "the flush has read the end offset")
        log.truncate_to(10)
    flush.join()
    assert log.flusher.recovery_point <= log.log_end_offset == 10


def _waits_for_lock(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code.co_name == "flush" and "truncations" in frame.f_locals


def test_a_flush_that_began_during_a_truncation_does_not_move_the_recovery_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = unflushed(tmp_path / "log")
    truncate, began, finish = Segment.truncate, threading.Event(), threading.Event()
    flush = threading.Thread(target=log.flusher.flush)

    def flushing(segment: Segment, offset: int) -> int:
        flush.start()
        assert began.wait(10)
        return truncate(segment, offset)

    def slow(*_: object) -> None:
        began.set()
        assert finish.wait(10)

    monkeypatch.setattr(Segment, "truncate", flushing)
    monkeypatch.setattr(LeaderEpochs, "sync", slow)
    log.truncate_to(10)
    finish.set()
    flush.join()
    assert log.flusher.recovery_point <= log.log_end_offset == 10


def test_a_flush_within_a_truncation_leaves_the_recovery_point_to_save_low(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = unflushed(tmp_path / "log")
    log.flusher.flush()
    truncate, saved = Segment.truncate, []

    def flushed(segment: Segment, offset: int) -> int:
        flush = threading.Thread(target=log.flusher.flush)
        flush.start()
        flush.join()
        saved.append(log.flusher.recovery_point_to_save)
        return truncate(segment, offset)

    monkeypatch.setattr(Segment, "truncate", flushed)
    log.truncate_to(10)
    assert saved[0] <= 10
    append(log, 2)
    log.flusher.flush()
    assert log.flusher.recovery_point == log.log_end_offset


def test_a_flush_up_to_an_offset_after_a_truncated_end_stops_at_the_end(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log, 2)
    log.flusher.flush(upto=60)
    assert log.flusher.recovery_point == 2


def test_a_log_on_a_full_disk_can_start_at_another_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path / "log")
    clear = LeaderEpochs.clear

    def clear_if_there_is_room(epochs: LeaderEpochs) -> None:
        if any(log.directory.glob("*.deleted")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        clear(epochs)

    monkeypatch.setattr(LeaderEpochs, "clear", clear_if_there_is_room)
    log.truncate_fully_and_start_at(80)
    append(log, 2)
    assert offsets(read_all(log)) == [80, 81]
    log.deleted_files.remove_due(sys.maxsize)
