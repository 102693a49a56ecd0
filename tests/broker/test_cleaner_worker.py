"""The cleaner process ends silently when its broker dies, and its errors arrive in the broker with their numbers."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage.cleaner.process import CleanerProcess
from tests.support.waiting import wait_for
from tests.unit.storage.cleaner.compaction import TP, Table
from tests.unit.storage.logs import NOW

WORKER = [sys.executable, "-m", "headrace.storage.cleaner.worker", str(os.getpid())]
REFUSED = b"{}\n"
"""A job that fails immediately."""
MEMORY = Path("/proc/self/mem")
"""Its first byte is not mapped, and a read of it fails like a read from a failed disk."""


def test_an_incomplete_job_is_not_started() -> None:
    result = subprocess.run(WORKER, input=b'{"directory": "/tm', capture_output=True, timeout=30, check=False)
    assert (result.stdout, result.stderr) == (b"", b"")


def test_no_job_is_started_if_the_broker_has_died_meanwhile() -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    orphan = [*WORKER[:-1], str(dead.pid)]
    result = subprocess.run(orphan, input=REFUSED, capture_output=True, timeout=30, check=False)
    assert (result.stdout, result.stderr) == (b"", b"")


def test_the_process_ends_silently_if_its_output_is_closed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(WORKER, input=REFUSED, stdout=writing, stderr=subprocess.PIPE, timeout=30, check=False)
    os.close(writing)
    assert result.stderr == b""


def test_the_process_ends_silently_after_its_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, subprocess, time
worker = subprocess.Popen([*{WORKER[:-1]!r}, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
worker.stdin.write({REFUSED!r} * 10000)  # the answers fill the pipe
worker.stdin.flush()
worker.stdout.readline()
print(worker.pid, flush=True)
time.sleep(60)
"""
    with (tmp_path / "stderr").open("wb") as stderr:
        parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, text=True)
        assert parent.stdout is not None
        try:
            worker = int(parent.stdout.readline())
        finally:
            parent.kill()
            parent.wait()
            parent.stdout.close()
    wait_for(lambda: _has_ended(worker), "the end of the worker")
    assert (tmp_path / "stderr").read_bytes() == b""


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/status")  # a zombie also counts, if no init process reaps it
    return status.exists() and "State:\tZ" in status.read_text()


def test_closing_an_idle_process_closes_its_pipes() -> None:
    cleaner = CleanerProcess()
    process = cleaner._start()
    cleaner._has_job = False
    cleaner.close()
    assert process.returncode is not None
    assert process.stdin is not None
    assert process.stdin.closed
    assert process.stdout is not None
    assert process.stdout.closed


class TestErrors:
    @pytest.fixture
    def process(self) -> Iterator[CleanerProcess]:
        process = CleanerProcess()
        yield process
        process.close()

    @pytest.fixture
    def table(self, tmp_path: Path) -> Iterator[Table]:
        table = Table(tmp_path / "data")
        table.put(("a", "1"), ("a", "2"))
        table.log.roll(NOW)
        yield table
        table.close()

    @pytest.mark.skipif(not MEMORY.exists(), reason="needs /proc")
    def test_a_failed_disk_takes_its_directory_offline(self, table: Table, process: CleanerProcess) -> None:
        path = table.log.segments.ordered[0].path
        path.unlink()
        path.symlink_to(MEMORY)

        assert table.cleaner.clean_filthiest(process)

        assert table.dirs.owned.offline == {table.directory: "[Errno 5] Input/output error"}

    def test_a_file_that_cannot_be_opened_fails_only_its_log(self, table: Table, process: CleanerProcess) -> None:
        path = table.log.segments.ordered[0].path
        path.unlink()
        path.symlink_to(path)

        assert table.cleaner.clean_filthiest(process)

        assert table.cleaner.failing == {TP: f"[Errno {errno.ELOOP}] {os.strerror(errno.ELOOP)}: '{path}'"}
        assert not table.dirs.owned.offline

    def test_a_process_that_cannot_be_started_leaves_the_directory_in_use(
        self, table: Table, process: CleanerProcess, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "python")

        monkeypatch.setattr("subprocess.Popen", fail)

        assert table.cleaner.clean_filthiest(process)

        assert "the cleaner process cannot be started" in table.cleaner.failing[TP]
        assert not table.dirs.owned.offline
