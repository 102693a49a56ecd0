"""Retention on a full disk: what can be deleted is deleted, and memory agrees with the files."""

import errno
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from headrace.errors import KafkaError
from headrace.storage.files.log_file import LogFile
from headrace.storage.log import leader_epochs
from headrace.storage.log.log import Log
from headrace.storage.log.segment import Segment
from tests.unit.storage.failing_calls import FailingCall, refuse
from tests.unit.storage.logs import NOW, SMALL, append, offsets, open_log, read_all, restarted

DELETING: Final = replace(SMALL, retention_ms=-1, retention_bytes=1500, file_delete_delay_ms=0)
EXPIRING: Final = replace(SMALL, retention_ms=1000, file_delete_delay_ms=0, preallocate=True)
END: Final = 12
LATER: Final = NOW + 10**6


def filled(directory: Path) -> Log:
    """Return a log of three segments with the offsets 0 to 11 and two leader epochs."""
    log = open_log(directory)
    for place in range(END // 2):
        append(log, 2, epoch=place // 5, value=b"v" * 400)
    log.flusher.flush()
    log.configure(DELETING)
    return log


def log_files(log: Log) -> list[int]:
    return sorted(int(path.name[:20]) for path in log.directory.glob("*.log*"))


def listed(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments.ordered]


def test_files_are_removed_even_if_the_leader_epochs_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(tmp_path / "log")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leader_epochs, "write_lines", refuse)
        assert log.apply_retention(NOW, END) == 2
        log.deleted_files.remove_due(NOW)
    assert log_files(log) == listed(log)
    assert log.log_start_offset == log.segments.first_offset > 0
    assert "leader-epoch-checkpoint is outdated: cannot move the start of" in caplog.text
    again = open_log(log.directory, clean=True)
    assert again.log_start_offset == log.log_start_offset
    assert [entry.start_offset for entry in again.leader_epochs.entries] == [log.log_start_offset, 10]


def test_old_segments_are_deleted_even_if_no_new_one_can_replace_the_last(tmp_path: Path) -> None:
    log = filled(tmp_path / "log")
    log.configure(EXPIRING)
    last = log.segments.active.base_offset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogFile, "preallocate", refuse)
        with pytest.raises(KafkaError, match="No space left"):
            log.apply_retention(LATER, END)
        log.deleted_files.remove_due(LATER)
    assert log_files(log) == listed(log) == [last]
    assert log.log_start_offset == last
    assert log.apply_retention(LATER, END) == 1
    log.deleted_files.remove_due(LATER)
    assert log_files(log) == listed(log) == [END]


def test_files_that_cannot_be_removed_are_removed_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for place in range(1, 100):
        log = filled(tmp_path / str(place))
        assert log.apply_retention(NOW, END) == 2
        kept = len(log_files(log)) - 2
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingCall(patch, place, [(os, "unlink")])
            log.deleted_files.remove_due(NOW)
        if failing.left > 0:
            break
        assert len(list(log.directory.glob("*.deleted"))) <= 1, f"call {place}"
        log.deleted_files.remove_due(NOW)
        assert not list(log.directory.glob("*.deleted")), f"call {place}"
        assert len(log_files(log)) == kept
    assert place > 5
    assert "Trying again later: cannot remove deleted segments of" in caplog.text


def test_a_file_that_can_never_be_removed_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = filled(tmp_path / "log")
    log.apply_retention(NOW, END)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        for _ in range(3):
            log.deleted_files.remove_due(NOW)
    assert len(caplog.records) == 1
    log.deleted_files.remove_due(NOW)
    assert not log.deleted_files


@pytest.mark.parametrize("now_ms", [NOW, LATER], ids=["by size", "all segments"])
def test_retention_that_fails_at_any_system_call_succeeds_later(now_ms: int, tmp_path: Path) -> None:
    config = DELETING if now_ms == NOW else EXPIRING
    for place in range(1, 200):
        log = filled(tmp_path / str(place))
        log.configure(config)
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingCall(patch, place)
            with suppress(KafkaError):
                log.apply_retention(now_ms, END)
        if failing.left > 0:
            break
        expected = list(range(log.log_start_offset, END))
        assert log.log_start_offset == log.segments.first_offset, f"call {place}"
        assert offsets(read_all(log)) == expected, f"call {place}"
        for again in restarted(log):
            assert (again.log_start_offset, again.log_end_offset) == (log.log_start_offset, END), f"call {place}"
            assert offsets(read_all(again)) == expected, f"call {place}"
            again.configure(config)
            again.apply_retention(now_ms, END)
            again.deleted_files.remove_due(now_ms)
            assert log_files(again) == listed(again), f"call {place}"
    assert place > 8


def test_a_flush_during_failing_retention_does_not_hide_a_segment_that_stays(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log", replace(SMALL, retention_bytes=100))
    for _ in range(40):
        append(log)
    first, second, *_ = log.segments.ordered
    rename = os.rename

    def fail(source: Path, target: Path) -> None:
        if source == second.path:
            log.flusher.flush()
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        rename(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(KafkaError, match="Permission denied"):
            log.apply_retention(NOW, log.log_end_offset)
    assert log.segments.first_offset == second.base_offset > first.base_offset
    assert log.flusher.recovery_point_to_save <= second.base_offset

    synced: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segment, "sync_indexes", lambda segment: synced.append(segment.path))
        log.flusher.flush()

    assert synced[0] == second.path
    assert log.flusher.recovery_point_to_save > second.base_offset
