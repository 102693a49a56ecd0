"""Files that are replaced as a whole."""

import os
from pathlib import Path

import pytest

from headrace.storage.files.atomic_file import replace_file
from tests.unit.storage.failing_calls import refuse


def test_a_temporary_file_left_by_a_crash_is_not_written_again(tmp_path: Path) -> None:
    path, temporary = tmp_path / "checkpoint", tmp_path / "checkpoint.tmp"
    temporary.write_bytes(b"old")
    # without a sync, a power failure could bring the old blocks of that file back under the new name
    kept = os.open(temporary, os.O_RDONLY)
    try:
        replace_file(path, b"new", sync=False)
        assert (path.read_bytes(), os.read(kept, 9), temporary.exists()) == (b"new", b"old", False)
    finally:
        os.close(kept)


def test_a_failed_write_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"one")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        replace_file(path, b"two")
    assert path.read_bytes() == b"one"
