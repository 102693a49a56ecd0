"""Flushes and checkpoints at the same time as rolls and failing retention: no index is taken for synced too early."""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import pytest

from headrace.errors import KafkaError
from headrace.storage.log.log import Log
from headrace.storage.log.segment import Segment
from headrace.storage.log.state import LogState
from tests.unit.storage.failing_calls import refuse
from tests.unit.storage.logs import NOW, SMALL, append, open_log

ALL_DROPPED: Final = replace(SMALL, retention_bytes=0)


def flushed(directory: Path) -> Log:
    """Return a flushed log with one segment of three records."""
    log = open_log(directory)
    for _ in range(3):
        append(log)
    log.flusher.flush()
    return log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return flushed(tmp_path / "log")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the base offsets of segments whose indexes were synced."""
    bases: list[int] = []
    sync_indexes = Segment.sync_indexes

    def syncing(segment: Segment) -> None:
        sync_indexes(segment)
        bases.append(segment.base_offset)

    monkeypatch.setattr(Segment, "sync_indexes", syncing)
    return bases


def roll(log: Log) -> None:
    """Roll, and append three records."""
    log.roll(NOW)
    for _ in range(3):
        append(log)


@pytest.mark.parametrize("unflushed", [0, 2])
def test_a_flush_during_a_roll_does_not_hide_the_indexes_of_the_rolled_segment(
    log: Log, synced: list[int], unflushed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(unflushed):
        append(log)
    create = Segment.create

    def creating(*args: Any, **options: Any) -> Segment:
        segment = create(*args, **options)
        log.flusher.flush()
        return segment

    monkeypatch.setattr(Segment, "create", creating)
    log.roll(NOW)
    log.flusher.flush()
    assert synced == [0]
    assert log.flusher.recovery_point_to_save == log.log_end_offset


def test_a_rolled_segment_is_synced_once(log: Log, synced: list[int]) -> None:
    append(log)
    roll(log)
    log.flusher.flush()
    log.flusher.flush()
    assert synced == [0]


def test_a_dropped_segment_is_not_synced(log: Log, synced: list[int]) -> None:
    roll(log)
    log.configure(ALL_DROPPED)
    log.apply_retention(NOW, 3)
    log.flusher.flush()
    assert synced == []
    assert log.flusher.recovery_point_to_save == 5


def test_a_flush_up_to_an_offset_syncs_no_later_segment(log: Log, synced: list[int]) -> None:
    roll(log)
    roll(log)
    log.flusher.flush(upto=2)
    assert synced == [0]


def test_the_recovery_point_stays_before_the_oldest_unsynced_segment(
    log: Log, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    roll(log)
    roll(log)
    log.configure(ALL_DROPPED)
    with monkeypatch.context() as patch:
        patch.setattr(Segment, "mark_deleted", refuse)
        with pytest.raises(KafkaError, match="No space left"):
            log.apply_retention(NOW, 6)
    assert log.flusher.recovery_point_to_save == 0
    log.flusher.flush()
    assert {0, 3} <= set(synced)
    assert log.flusher.recovery_point_to_save == 8


def test_a_segment_that_stays_is_synced_after_a_flush_has_missed_it(
    log: Log, synced: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush finds a file of a segment renamed, and goes on after retention has failed and renamed it back."""
    roll(log)
    log.configure(ALL_DROPPED)
    log.segments.ordered[0].close_file()
    missed, restored = Event(), Event()
    rename = os.rename

    class Pausing(list[Segment]):
        def remove(self, segment: Segment) -> None:
            missed.set()
            assert restored.wait(10)
            super().remove(segment)

    log.flusher._rolled = Pausing(log.flusher._rolled)
    flush = Thread(target=log.flusher.flush)

    def renaming(source: Path, target: Path) -> None:
        if target.name.endswith(".index.deleted"):
            flush.start()
            assert missed.wait(10)
            refuse()
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", renaming)
        with pytest.raises(KafkaError, match="No space left"):
            log.apply_retention(NOW, 3)
    restored.set()
    flush.join(10)
    log.flusher.flush()
    assert 0 in synced


class Interrupted:
    """The state of a log: calls `interrupt` before or after one of the reads of its attributes."""

    def __init__(self, state: LogState, interrupt: Callable[[], None], place: int) -> None:
        self._state = state
        self._interrupt = interrupt
        self._left = place

    def __getattr__(self, name: str) -> Any:
        self._count()
        value = getattr(self._state, name)
        self._count()
        return value

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._interrupt()


def test_a_checkpoint_during_a_roll_does_not_pass_the_rolled_segment(tmp_path: Path) -> None:
    for place in range(1, 7):
        log = flushed(tmp_path / str(place))
        state: Any = Interrupted(log.state, partial(roll, log), place)
        log.flusher._state = state
        assert log.flusher.recovery_point_to_save < 3, place
