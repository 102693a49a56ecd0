"""A compaction whose renames fail changes nothing, and succeeds later."""

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.storage.cleaner.log_cleaner import RETRY_MS
from headrace.storage.log.recovery import finish_interrupted_swaps, remove_unfinished_swaps
from headrace.storage.log.segment import Segment
from headrace.storage.log.segment_files import (
    CLEANED_SUFFIX,
    DAMAGED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    segment_file,
)
from tests.unit.storage.cleaner.compaction import Table, filled, newest
from tests.unit.storage.failing_calls import FailingCall, refuse
from tests.unit.storage.logs import NOW, read_all

SCANDIR: Final = os.scandir


def failures_of(table: Table) -> list[str]:
    """Return a list that gets the reason of every failure of the log directory."""
    reasons: list[str] = []
    table.dirs.on_failure = lambda _, reason: reasons.append(reason)
    return reasons


def log_files(table: Table) -> list[str]:
    return sorted(path.name for path in table.log.directory.glob("*.log*") if path.suffix != ".deleted")


def test_a_compaction_with_any_failing_rename_can_be_repeated(tmp_path: Path) -> None:
    for place in range(1, 200):
        table = filled(tmp_path / str(place))
        expected, failures = newest(table.records()), failures_of(table)
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingCall(patch, place, [(os, "rename")])
            table.compact()
        if failing.left > 0:
            break
        assert not failures
        assert table.cleaner.failing
        assert log_files(table) == [segment.path.name for segment in table.log.segments.ordered], f"call {place}"
        assert newest(table.records()) == expected, f"call {place}"
        shutil.copytree(table.directory, tmp_path / "killed", dirs_exist_ok=True)
        killed = Table(tmp_path / "killed")
        assert newest(killed.records()) == expected, f"call {place}"
        killed.close()
        shutil.rmtree(tmp_path / "killed")
        table.now += RETRY_MS
        assert table.compact()
        assert not table.cleaner.failing, f"call {place}"
        assert newest(table.records()) == expected, f"call {place}"
        table.reopen()
        assert newest(table.records()) == expected, f"call {place}"
        table.close()
    assert place > 20


def begin_move(table: Table) -> None:
    table.log.is_moving = True


def truncate(table: Table) -> None:
    table.log.truncate_to(table.log.log_end_offset - 1)


@pytest.mark.parametrize("change", [begin_move, truncate])
def test_compacted_files_removed_only_in_part_are_not_mixed_with_the_original_ones(
    change: Callable[[Table], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(1, 20):
        table = filled(tmp_path / str(place))
        expected = newest(table.records()[:-1])

        def change_first(_: Path, table: Table = table) -> None:
            change(table)

        monkeypatch.setattr("headrace.storage.cleaner.log_cleaner.sync_directory", change_first)
        with pytest.MonkeyPatch.context() as patch:
            failing = FailingCall(patch, place, [(os, "unlink")])
            table.compact()
        if failing.left > 0:
            break
        table.dirs.close({})
        again = Table(tmp_path / str(place))
        assert expected.items() <= newest(again.records()).items(), f"call {place}"
        assert not list(again.log.directory.glob("*.swap"))
        for offset in range(again.log.log_end_offset):
            assert read_all(again.log, offset)[0].offset >= offset, f"call {place}"
        again.close()
    assert place > 4


@pytest.mark.parametrize("calls", [6, 8], ids=["of an original segment", "of the compacted segment"])
def test_renames_that_cannot_be_undone_take_the_directory_offline(calls: int, tmp_path: Path) -> None:
    table = filled(tmp_path / "data")
    failures = failures_of(table)
    expected = newest(table.records())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", failing_after(calls, refuse))
        table.compact()
    assert len(failures) == 1
    assert "failed halfway: No space left on device" in failures[0]
    table.dirs.close({})
    assert newest(Table(tmp_path / "data").records()) == expected


def test_an_original_segment_that_is_lost_while_it_is_renamed_keeps_its_compacted_records(tmp_path: Path) -> None:
    table = filled(tmp_path / "data")
    failures = failures_of(table)
    expected = newest(table.records())
    fails = iter([True])

    def lose_or_rename(*names: Any, **options: Any) -> None:
        if next(fails, False):
            for path in table.log.directory.glob("*.log.deleted"):
                path.unlink()
            refuse()
        rename(*names, **options)

    rename = os.rename
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", failing_after(8, lose_or_rename))
        table.compact()
    assert len(failures) == 1
    table.dirs.close({})
    assert newest(Table(tmp_path / "data").records()) == expected


def failing_after(calls: int, then: Callable[..., None]) -> Callable[..., None]:
    """Return a function that renames files, and calls `then` instead after some calls."""
    rename, numbers = os.rename, count()

    def counted(*names: Any, **options: Any) -> None:
        (rename if next(numbers) < calls else then)(*names, **options)

    return counted


class KilledError(BaseException):
    """The process ends here."""


def killed_during(change: Callable[[Path], None], directory: Path, place: int) -> bool:
    """Call `change`, but end the process at its rename or removal number `place`; return False if it makes fewer."""
    calls = count(1)

    def counting(call: Callable[..., None]) -> Callable[..., None]:
        def counted(*names: Any, **options: Any) -> None:
            if next(calls) == place:
                raise KilledError
            call(*names, **options)

        return counted

    with pytest.MonkeyPatch.context() as patch:
        for name in ("unlink", "rename"):
            patch.setattr(os, name, counting(getattr(os, name)))
        try:
            change(directory)
        except KilledError:
            return True
    return False


def write_swap(directory: Path, log_file: str = "") -> None:
    """Create an original segment and a compacted one that is about to replace it, with `log_file` as its records."""
    directory.mkdir()
    for kind in SEGMENT_SUFFIXES:
        segment_file(directory, 0, kind).write_text("original")
        segment_file(directory, 0, kind + SWAP_SUFFIX).write_text(log_file if kind == LOG_SUFFIX else "compacted")


def remove_segment(directory: Path) -> None:
    Segment(directory, 0, size=0, index_size=0, time_index_size=0, now_ms=NOW, suffix=SWAP_SUFFIX).remove()


def cleaned_first(directory: Path) -> AbstractContextManager[list[os.DirEntry[str]]]:
    """List a directory in an order in which a file system may list it."""
    with SCANDIR(directory) as entries:
        return nullcontext(sorted(entries, key=lambda entry: not entry.name.endswith(CLEANED_SUFFIX)))


@pytest.mark.parametrize("log_file", ["", "damaged"])
@pytest.mark.parametrize("remove", [remove_segment, remove_unfinished_swaps])
def test_a_swap_whose_removal_is_interrupted_twice_is_completed_whole_or_not_at_all(
    remove: Callable[[Path], None], log_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", cleaned_first)
    for first in count(1):
        for second in count(1):
            directory = tmp_path / f"{first} {second}"
            write_swap(directory, log_file)
            is_removing = killed_during(remove, directory, first)
            is_finishing = killed_during(finish_interrupted_swaps, directory, second)
            finish_interrupted_swaps(directory)
            left = {path.suffix: path.read_text() for path in directory.iterdir() if path.suffix != DAMAGED_SUFFIX}
            assert left.keys() == set(SEGMENT_SUFFIXES), f"calls {first}, {second}"
            assert len(set(left.values()) - {""}) == 1, f"calls {first}, {second}: {left}"
            if not is_finishing:
                break
        if not is_removing:
            break
    assert first > len(SEGMENT_SUFFIXES)
