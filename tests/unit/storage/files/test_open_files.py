"""The number of open segment files is limited, without effect on their owners."""

import errno
import os
from pathlib import Path

import pytest

from headrace.storage.files.log_file import LogFile
from headrace.storage.files.open_files import OpenFiles


class Owner:
    def __init__(self, files: OpenFiles, path: Path) -> None:
        self.file: LogFile | None = files.open(path, self, create=True)

    def close_file(self) -> None:
        self.file = None


def owners(files: OpenFiles, directory: Path, count: int) -> list[Owner]:
    return [Owner(files, directory / str(number)) for number in range(count)]


def test_the_oldest_files_are_closed(tmp_path: Path) -> None:
    files = OpenFiles(capacity=16)
    created = owners(files, tmp_path, 20)
    assert len(files) <= 16
    is_open = [owner.file is not None for owner in created]
    assert is_open == sorted(is_open)
    assert sum(is_open) == len(files)
    assert created[-1].file is not None


def test_one_file_may_always_be_open(tmp_path: Path) -> None:
    files = OpenFiles(capacity=0)
    created = owners(files, tmp_path, 3)
    assert [owner.file is not None for owner in created] == [False, False, True]


def test_a_collected_owner_does_not_count(tmp_path: Path) -> None:
    files = OpenFiles(capacity=16)
    created = owners(files, tmp_path, 8)
    del created[:5]
    assert len(files) == 3


def test_a_reopened_file_counts_once_and_as_the_newest(tmp_path: Path) -> None:
    files = OpenFiles(capacity=2)
    first, second = owners(files, tmp_path, 2)
    first.file = files.open(tmp_path / "0", first)
    third = Owner(files, tmp_path / "2")
    assert (first.file is None, second.file is None, third.file is None) == (False, True, False)


def test_files_are_closed_when_the_system_has_no_descriptors_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OpenFiles(capacity=100)
    created = owners(files, tmp_path, 8)
    real_open, refusals = os.open, [errno.EMFILE]

    def full(path: Path, flags: int, mode: int = 0o777) -> int:
        if refusals:
            raise OSError(refusals.pop(), "Too many open files")
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", full)
    late = Owner(files, tmp_path / "late")
    assert late.file is not None
    assert created[0].file is None


def test_other_errors_are_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OpenFiles().open(tmp_path / "none" / "0", Owner(OpenFiles(), tmp_path / "0"))
