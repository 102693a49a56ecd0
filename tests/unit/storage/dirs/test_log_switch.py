"""A log that moves to another log directory takes its transaction index along."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from uuid import UUID

import pytest

from headrace.storage.dirs import log_switch
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.log_move import LogMove, MoveFailedError, Plan
from headrace.storage.log.config import LogConfig
from headrace.storage.log.indexes.txn_index import AbortedTransaction, TransactionIndex
from headrace.storage.log.log import Log
from headrace.wire.control import Marker
from tests.unit.storage.failing_calls import full_disk, refuse, without_descriptors
from tests.unit.storage.logs import NOW, TP, append, put

FIRST = AbortedTransaction(1, 0, 1, 2)
SECOND = AbortedTransaction(1, 3, 4, 5)


class Moved:
    """A log whose transaction index has an unwritten entry, and its copy in another log directory."""

    def __init__(self, directory: Path) -> None:
        self.dirs = LogDirs.open([directory / "a", directory / "b"], broker_id=0)
        self.log: Log = self.dirs.create(TP, UUID(int=1), LogConfig(), now_ms=NOW)
        source = self.log.directory.parent
        target = directory / ("b" if source.name == "a" else "a")
        put(self.log, 1)
        put(self.log, 1, marker=Marker.ABORT)
        with full_disk(0):
            self.log.note_aborted(FIRST)
        self.move = LogMove(self.log, UUID(int=1), target)
        self.move.prepare()
        self.move.copy(self.move.plan(), lambda: inf)
        log_switch.prepare(self.dirs, self.move, 0)
        append(self.log)

    @property
    def index(self) -> TransactionIndex:
        return self.log.segments.active.txn_index

    def switch(self) -> None:
        assert log_switch.switch(self.dirs, self.move)
        log_switch.finish(self.dirs, self.move, NOW)


@pytest.fixture
def moved(tmp_path: Path) -> Moved:
    return Moved(tmp_path)


def written_after(copy: Callable[..., None], index: TransactionIndex) -> Callable[..., None]:
    def copied(move: LogMove, plan: Plan, *arguments: object, **options: object) -> None:
        copy(move, plan, *arguments, **options)
        index.write_tail()

    return copied


@pytest.mark.parametrize("written", [False, True])
def test_a_move_takes_an_entry_along_that_was_written_late_or_never(
    moved: Moved, monkeypatch: pytest.MonkeyPatch, *, written: bool
) -> None:
    if written:
        monkeypatch.setattr(LogMove, "copy", written_after(LogMove.copy, moved.index))
    moved.switch()
    assert moved.index.path.parent == moved.log.directory == moved.move.target / str(TP)
    assert moved.index.read() == TransactionIndex(moved.index.path).read() == [FIRST]

    put(moved.log, 1)
    put(moved.log, 1, marker=Marker.ABORT)
    moved.log.note_aborted(SECOND)

    assert moved.index.read() == TransactionIndex(moved.index.path).read() == [FIRST, SECOND]


def test_a_move_that_fails_keeps_the_entry(moved: Moved, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(MoveFailedError):
            log_switch.switch(moved.dirs, moved.move)
    assert moved.index.read() == [FIRST]
    moved.log.flusher.flush()
    assert moved.index.path.parent == moved.log.directory != moved.move.future
    assert TransactionIndex(moved.index.path).read() == [FIRST]


def test_a_move_fails_if_the_target_has_no_room_for_the_entry(moved: Moved) -> None:
    with without_descriptors(".txnindex.tmp"), pytest.raises(MoveFailedError) as caught:
        log_switch.switch(moved.dirs, moved.move)
    assert caught.value.directory == moved.move.target
    assert moved.index.read() == [FIRST]
