"""A client program with line-based input and output."""

import queue
import subprocess
import threading
import time
from collections.abc import Sequence

from tests.clients.drivers.contract import DEADLINE_S


class LineProcess:
    """A program whose output is read continuously, so that it never blocks on a full pipe."""

    def __init__(self, command: Sequence[str], *, cwd: str | None = None) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
        )
        self._name = command[0]
        self._lines: queue.Queue[str] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=self._read_output), threading.Thread(target=self._read_errors)]
        for reader in self._readers:
            reader.start()

    def write_line(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise AssertionError(f"{self._name} ended early:\n{self.errors}") from None

    def read_line(self, timeout_s: float = DEADLINE_S) -> str:
        """Return the next line of standard output; on a timeout, raise AssertionError with its standard error."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                return self._lines.get(timeout=0.2)
            except queue.Empty:
                over = self._process.poll() is not None and not self._readers[0].is_alive() and self._lines.empty()
                if over or time.monotonic() > deadline:
                    raise AssertionError(f"no line from {self._name} within {timeout_s:g} s:\n{self.errors}") from None

    def end_input(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, timeout_s: float = DEADLINE_S) -> None:
        """Close standard input and wait for the end; raise AssertionError unless the status is 0."""
        self.end_input()
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"{self._name} did not end within {timeout_s:g} s:\n{self.errors}") from None
        assert status == 0, f"{self._name} ended with status {status}:\n{self.errors}"

    def terminate(self) -> None:
        """Send SIGTERM, on which a consumer leaves its group, and SIGKILL if it does not end."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self.close()

    def close(self) -> None:
        """Kill the program if it still runs, and close its pipes."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # unread input
                continue

    @property
    def errors(self) -> str:
        return "\n".join(self._errors[-40:])

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode().rstrip("\n"))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors.append(line.decode(errors="replace").rstrip("\n"))
