"""A roll that fails at any system call loses no record, neither at once nor after a restart."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from headrace.errors import KafkaError
from headrace.storage.files.disk_failures import is_disk_failure
from headrace.storage.files.log_file import LogFile
from headrace.storage.log.log import Log
from headrace.storage.log.segment import MAX_RELATIVE_OFFSET
from tests.unit.storage.failing_calls import FailingCall, refuse, without_descriptors
from tests.unit.storage.logs import NOW, SMALL, append, batch, offsets, open_log, read_all, restarted

PREALLOCATED: Final = replace(SMALL, preallocate=True)
LARGE: Final = b"v" * 1700
"""A value that does not fit into the active segment."""
EXPIRED: Final = NOW + 10**12
ROLLS: Final[dict[str, Callable[[Log], object]]] = {
    "append": lambda log: append(log, value=LARGE),
    "roll": lambda log: log.roll(NOW),
    "retention": lambda log: log.apply_retention(EXPIRED, log.log_end_offset),
}


def filled(directory: Path) -> Log:
    """Return a flushed log of two segments, which rolls at the next large batch."""
    log = open_log(directory, PREALLOCATED)
    append(log, value=LARGE)
    for _ in range(6):
        append(log)
    log.flusher.flush()
    assert len(log.segments.ordered) == 2
    return log


def log_files(log: Log) -> list[int]:
    return sorted(int(path.stem) for path in log.directory.glob("*.log"))


@pytest.mark.parametrize("roll", ROLLS.values(), ids=ROLLS.keys())
def test_records_appended_after_a_failed_roll_survive_a_restart(roll: Callable[[Log], object], tmp_path: Path) -> None:
    succeeded = 0
    for place in range(1, 100):
        log = filled(tmp_path / str(place))
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingCall(patch, place)
            with suppress(KafkaError):
                roll(log)
                succeeded += 1
        if failing.left > 0:
            break
        expected = [*offsets(read_all(log)), *(append(log).base_offset for _ in range(3))]
        assert offsets(read_all(log)) == expected, f"call {place}"
        assert log_files(log) == [segment.base_offset for segment in log.segments.ordered], f"call {place}"
        for again in restarted(log, PREALLOCATED, log_start_offset=log.log_start_offset):
            assert offsets(read_all(again)) == expected, f"call {place}"
    assert place > succeeded + 5


def test_a_failed_roll_whose_file_cannot_be_removed_takes_the_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(tmp_path / "log")
    failures: list[OSError] = []
    log.state.on_disk_error = lambda _, error: failures.append(error)
    monkeypatch.setattr(LogFile, "preallocate", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(KafkaError, match="failed halfway: No space left on device"):
        append(log, value=LARGE)
    assert [is_disk_failure(failure) for failure in failures] == [True]


def test_a_flush_after_many_failed_rolls_costs_no_more_than_after_one(tmp_path: Path) -> None:
    syncs = {}
    for rolls in (1, 5):
        log = filled(tmp_path / str(rolls))
        synced: list[LogFile] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(LogFile, "preallocate", refuse)
            for _ in range(rolls):
                with pytest.raises(KafkaError):
                    append(log, value=LARGE)
            patch.setattr(LogFile, "sync", lambda file, synced=synced: synced.append(file))
            log.flusher.flush()
        syncs[rolls] = len(synced)
    assert syncs[1] == syncs[5] > 0


def test_batches_too_far_apart_for_one_segment_stay_in_the_empty_segment_of_their_name(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    first, last = batch(0), batch(MAX_RELATIVE_OFFSET + 1)
    log.append(
        [first, last],
        len(first) + len(last),
        base_offset=0,
        first_last_offset=0,
        last_offset=MAX_RELATIVE_OFFSET + 1,
        max_timestamp=NOW,
        offset_of_max_timestamp=0,
        leader_epoch=0,
        now_ms=NOW,
    )
    assert log_files(log) == [0]
    assert offsets(read_all(log)) == [0, MAX_RELATIVE_OFFSET + 1]


class TestFilesOfEarlierVersions:
    """Earlier versions left empty segments when a roll failed."""

    def leave(self, log: Log, offset: int, content: bytes = b"", *, with_indexes: bool = False) -> None:
        path = log.directory / f"{offset:020d}.log"
        path.write_bytes(content)
        if with_indexes:
            path.with_suffix(".index").touch()
            path.with_suffix(".timeindex").touch()

    @pytest.mark.parametrize("clean", [True, False])
    def test_empty_segments_inside_another_are_removed(
        self, tmp_path: Path, clean: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        log = filled(tmp_path / "log")
        failed = [append(log).base_offset for _ in range(4)]
        expected = [segment.base_offset for segment in log.segments.ordered]
        log.close()
        for place, offset in enumerate(failed):
            self.leave(log, offset, bytes(2000 * (place % 2)), with_indexes=place < 2)
        again = open_log(log.directory, PREALLOCATED, clean=clean)
        assert log_files(again) == expected
        assert [f"{offset}.log, which has no records" in caplog.text for offset in failed] == [True] * 4
        append(again)
        assert offsets(read_all(again)) == list(range(failed[-1] + 2))

    @pytest.mark.parametrize("clean", [True, False])
    def test_records_before_a_later_roll_are_kept(self, tmp_path: Path, clean: bool) -> None:
        log = filled(tmp_path / "log")
        failed_at = append(log).base_offset
        append(log, value=LARGE)
        append(log)
        log.close()
        self.leave(log, failed_at)
        again = open_log(log.directory, PREALLOCATED, clean=clean)
        assert offsets(read_all(again)) == list(range(failed_at + 3))

    def test_empty_segments_at_the_end_of_others_are_kept(self, tmp_path: Path) -> None:
        log = filled(tmp_path / "log")
        log.roll(NOW)
        expected = log_files(log)
        for again in restarted(log, PREALLOCATED):
            assert log_files(again) == expected


def test_a_file_that_cannot_be_opened_fails_the_append_alone(tmp_path: Path) -> None:
    filled(tmp_path / "log").close()
    log = open_log(tmp_path / "log", clean=True)
    end = log.log_end_offset
    log.segments.active.close_file()
    with without_descriptors(".log"):
        assert not log.fits_active_segment(100, end, NOW, NOW)
        with pytest.raises(KafkaError, match="Too many open files"):
            append(log)
    assert log.fits_active_segment(100, end, NOW, NOW)
    append(log)
    assert offsets(read_all(log)) == list(range(end + 1))
