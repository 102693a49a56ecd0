"""A Headrace broker in a separate process, which tests kill and restart on the same port and directory.

For tests that need a real process (signals, memory, command lines, clients that block a thread). Other tests run a
broker in their own process with `headrace.testing`.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from tests.support.ports import free_port

API_VERSIONS_REQUEST: Final = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions v0, correlation id 1, no client id."""
_READY_S: Final = 60.0

_running: "list[BrokerProcess]" = []


class BrokerProcess:
    """A broker as a context manager, which starts it and kills it if it still runs at the end.

    `settings` are passed as `--set name=value`. All runs append to the log at `log_path`.
    """

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, object] | None = None,
        port: int | None = None,
        more_data: Sequence[Path] = (),
        program: Sequence[str] = ("headrace",),
        host: str = "127.0.0.1",
        launcher: Sequence[str] = (),
    ) -> None:
        """`more_data` are further log directories; `program` is a module, with arguments, used like `headrace`.

        `launcher` is a command that executes another one, for example in a network namespace.
        """
        self.data = data
        self._directories = ",".join(map(str, (data, *more_data)))
        self.settings = dict(settings or {})
        self.host = host
        self.port = port if port is not None else free_port()
        self.log_path = data.with_name(data.name + ".broker.log")
        self._program = program
        self._launcher = launcher
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait for an answer to ApiVersions. Raises AssertionError, with the log, on a timeout."""
        if self.running:
            raise RuntimeError("the broker is already running")
        command = [*self._launcher, sys.executable, "-m", *self._program, "start", "--listen", self.bootstrap]
        command += ["--data", self._directories]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        _running.append(self)
        self._wait_until_ready()

    def sigkill(self) -> None:
        self._end(signal.SIGKILL)

    def sigterm(self, timeout_s: float = 60.0) -> int:
        """Ask for a clean shutdown and return the exit status."""
        return self._end(signal.SIGTERM, timeout_s)

    def pause(self) -> None:
        self._started().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._started().send_signal(signal.SIGCONT)

    def restart(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Stop it with the signal `how` and start it again on the same port and directory."""
        self._end(how)
        self.start()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def end_of_log(self, lines: int = 60) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def rss_bytes(self) -> int:
        answer = subprocess.run(["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, text=True, check=True)
        return int(answer.stdout) * 1024

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            # the broker is gone when the report is written
            error.add_note(f"broker {self.bootstrap}:\n{self.end_of_log()}")
        self.close()

    def close(self) -> None:
        """Kill the process if it still runs."""
        if self.running:
            self.resume()
            self.sigkill()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the broker was not started")
        return self._process

    def _end(self, how: signal.Signals, timeout_s: float = 60.0) -> int:
        process = self._started()
        process.send_signal(how)
        if self in _running:
            _running.remove(self)
        try:
            return process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"alive {timeout_s:g} s after {how.name}; its log:\n{self.end_of_log()}") from None

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _READY_S
        while not answers_api_versions(self.host, self.port):
            status = self._started().poll()
            if status is not None:
                raise AssertionError(f"the broker exited with status {status}; its log:\n{self.end_of_log()}")
            if time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"no answer to ApiVersions within {_READY_S:g} s; its log:\n{self.end_of_log()}")
            time.sleep(0.01)


def answers_api_versions(host: str, port: int) -> bool:
    """Return True if a broker answers ApiVersions v0."""
    try:
        with socket.create_connection((host, port), timeout=2) as connection:
            connection.sendall(API_VERSIONS_REQUEST)
            return len(connection.recv(8, socket.MSG_WAITALL)) == 8
    except OSError:
        return False


class LogsSince:
    """The lines that this test process's brokers log after its creation."""

    def __init__(self) -> None:
        self._before = {broker.log_path: broker.log_path.stat().st_size for broker in _running}

    def of_running(self) -> list[tuple[str, str]]:
        """Return a title and the last lines of every running broker with new ones, for the report of a failed test."""
        return [
            (f"broker {broker.bootstrap} (pid {broker.pid}, of {os.getpid()})", "\n".join(lines[-60:]))
            for broker in _running
            if (lines := self._of(broker.log_path))
        ]

    def _of(self, log_path: Path) -> list[str]:
        with log_path.open("rb") as log:
            log.seek(self._before.get(log_path, 0))
            return log.read().decode(errors="replace").splitlines()
