"""A FIFO or a huge file in place of a small file neither blocks a start nor fills the memory."""

import errno
import os
from pathlib import Path
from typing import Final

import pytest

from headrace.errors import KafkaError
from headrace.storage.files import sparse_copy
from headrace.storage.files.atomic_file import UnusableFileError, read_file
from headrace.storage.files.checkpoint import CorruptCheckpointError, OffsetCheckpoint
from headrace.storage.files.sparse_copy import copy_file
from tests.unit.storage.logs import append, open_log


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def test_a_fifo_is_refused_without_waiting_for_its_writer(fifo: Path) -> None:
    with pytest.raises(UnusableFileError, match="fifo is not a regular file: move it away"):
        read_file(fifo)


def test_a_huge_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    with pytest.raises(UnusableFileError, match="huge has 8589934592 bytes"):
        read_file(path)


def test_a_fifo_in_place_of_a_checkpoint_counts_as_corrupt(fifo: Path) -> None:
    with pytest.raises(CorruptCheckpointError, match="not a regular file"):
        OffsetCheckpoint(fifo).read()


def test_a_fifo_among_the_files_of_a_log_is_refused_by_name(tmp_path: Path) -> None:
    log = open_log(tmp_path / "log")
    append(log)
    log.close()
    for suffix in ("txnindex", "timeindex", "index", "log"):
        path = log.directory / f"{0:020}.{suffix}"
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        with pytest.raises(KafkaError, match=f"{path.name} is not a regular file"):
            open_log(log.directory)
        path.unlink()


class TestSparseCopies:
    CHUNK_BYTES: Final = 4096

    @pytest.fixture(autouse=True)
    def small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sparse_copy, "_COPY_BYTES", self.CHUNK_BYTES)

    def check(self, directory: Path) -> int:
        """Copy a file with holes, and return the bytes that the copy occupies."""
        source, target = directory / "source", directory / "target"
        with source.open("wb") as file:
            for content in (b"begin", b"middle", b"end"):
                file.write(content)
                file.seek(40 * self.CHUNK_BYTES, os.SEEK_CUR)
            file.truncate(file.tell())
        copy_file(source, target)
        assert target.read_bytes() == source.read_bytes()
        return target.stat().st_blocks * 512

    def test_a_copy_keeps_the_holes(self, tmp_path: Path) -> None:
        assert self.check(tmp_path) < 20 * self.CHUNK_BYTES

    def test_a_copy_is_complete_on_file_systems_that_cannot_find_holes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lseek = os.lseek

        def seek(descriptor: int, position: int, whence: int) -> int:
            if whence == os.SEEK_DATA:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            return lseek(descriptor, position, whence)

        monkeypatch.setattr(os, "lseek", seek)
        self.check(tmp_path)

    def test_a_copy_is_complete_on_platforms_without_seek_data(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "SEEK_DATA")
        self.check(tmp_path)
