"""The cleaner process ends silently when its broker dies."""

import os
import subprocess
import sys
from pathlib import Path

from headrace.storage.cleaner.process import CleanerProcess
from tests.support.waiting import wait_for

WORKER = [sys.executable, "-m", "headrace.storage.cleaner.worker"]
REFUSED = b"{}\n"
"""A job that fails immediately."""


def test_an_incomplete_job_is_not_started() -> None:
    result = subprocess.run(WORKER, input=b'{"directory": "/tm', capture_output=True, timeout=30, check=False)
    assert (result.stdout, result.stderr) == (b"", b"")


def test_the_process_ends_silently_if_its_output_is_closed() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = subprocess.run(WORKER, input=REFUSED, stdout=writing, stderr=subprocess.PIPE, timeout=30, check=False)
    os.close(writing)
    assert result.stderr == b""


def test_the_process_ends_silently_after_its_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
import subprocess, time
worker = subprocess.Popen({WORKER!r}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
