"""A compaction whose renames fail changes nothing, and succeeds later."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.storage.cleaner.log_cleaner import RETRY_MS
from tests.unit.storage.cleaner.compaction import Table
from tests.unit.storage.cleaner.test_compaction_crash import filled, newest
from tests.unit.storage.failing_call import FailingCall


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


def test_renames_that_cannot_be_undone_take_the_directory_offline(tmp_path: Path) -> None:
    table = filled(tmp_path / "data")
    failures = failures_of(table)
    expected = newest(table.records())
    rename: Callable[..., None] = os.rename
    calls = 0

    def failing(*names: Any, **options: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 6:  # while the first original segment is renamed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(*names, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", failing)
        table.compact()
    assert len(failures) == 1
    assert "failed halfway: No space left on device" in failures[0]
    table.dirs.close({})
    assert newest(Table(tmp_path / "data").records()) == expected
