"""Commands without a broker or with an unresponsive one, and brokers that cannot start."""

import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from tests.support.ports import free_port

runner = CliRunner()
_FEW = 20


def test_without_a_listener_commands_fail_fast_with_advice() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    advice = f"Error: nothing is listening on {bootstrap}\nStart a broker with `headrace start`"
    for line in ("topics list", "produce t", "consume t", "topics describe t"):
        result = runner.invoke(app, [*line.split(), "--bootstrap", bootstrap], input="")
        assert (result.exit_code, result.stdout) == (1, ""), line
        assert result.stderr.startswith(advice), line


def test_an_unknown_host_is_named_and_options_may_have_the_names_used_by_kafkas_tools() -> None:
    for line in (
        "topics list --bootstrap nowhere.invalid:9092",
        "groups list --bootstrap-server nowhere.invalid:1",
        "consume t --bootstrap-server=nowhere.invalid:1",
    ):
        result = runner.invoke(app, line.split())
        assert result.exit_code == 1, line
        assert "unknown host 'nowhere.invalid'" in result.stderr, line


def test_the_cluster_is_read_from_the_environment() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    result = runner.invoke(app, ["topics", "list"], env={"HEADRACE_BOOTSTRAP": bootstrap})
    assert f"nothing is listening on {bootstrap}" in result.stderr


def test_an_unreadable_file_is_reported_before_connecting() -> None:
    result = runner.invoke(app, ["produce", "t", "/does/not/exist", "--bootstrap", "nowhere.invalid:1"])
    assert result.exit_code == 1
    assert "cannot read '/does/not/exist': no such file or directory" in result.stderr


def test_a_broker_that_answers_only_the_first_request_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.python_admin._TIMEOUT_MS", 500)
    with socket.create_server(("127.0.0.1", 0)) as server:
        greeted = threading.Thread(target=_answer_the_first, args=(server,))
        greeted.start()
        started = time.monotonic()
        result = runner.invoke(app, ["groups", "list", "--bootstrap", f"127.0.0.1:{server.getsockname()[1]}"])
        took = time.monotonic() - started
        greeted.join()
    assert result.exit_code == 1
    assert "listing groups: " in result.output
    # The timeout, and a second of imports. A client without the timeout waits for 30 s and longer.
    assert took < 20


def _answer_the_first(server: socket.socket) -> None:
    with server.accept()[0] as connection:
        request = connection.recv(1000)
        connection.sendall(struct.pack(">i", 10) + request[8:12] + bytes(6))


def test_a_low_limit_of_open_files_is_reported_before_the_start(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "headrace", "start", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (_FEW, _FEW)),
    )
    assert ended.returncode == 1
    assert ended.stderr == "headrace: `ulimit -n` allows 20 open files: a broker needs at least 48\n"
    assert not (tmp_path / "data").exists()
