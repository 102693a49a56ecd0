"""A FIFO or a huge file in place of a small file neither blocks a start nor fills the memory."""

import os
from pathlib import Path

import pytest

from headrace.errors import KafkaError
from headrace.storage.files.atomic_file import UnusableFileError, copy_file, read_file
from headrace.storage.files.checkpoint import CorruptCheckpointError, OffsetCheckpoint
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


@pytest.mark.parametrize("suffix", ["log", "index", "timeindex", "txnindex"])
def test_a_fifo_among_the_files_of_a_log_is_refused_by_name(tmp_path: Path, suffix: str) -> None:
    log = open_log(tmp_path / "log")
    append(log)
    log.close()
    path = log.directory / f"{0:020}.{suffix}"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    with pytest.raises(KafkaError, match=f"{path.name} is not a regular file"):
        open_log(log.directory)


def test_a_copy_keeps_the_holes_of_a_file(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    with source.open("wb") as file:
        file.write(b"begin")
        file.seek(20 << 20)
        file.write(b"end")
        file.truncate(40 << 20)

    copy_file(source, target)

    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks * 512 < 5 << 20
