"""The processes of the demo: a broker, and the driver of the jobs."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.pipeline.demo.driver import FINISH
from headrace.pipeline.errors import PipelineError

_READY_S: Final = 30.0
_BROKER_STOP_TIMEOUT_S: Final = 15.0
_SPARK_STOP_TIMEOUT_S: Final = 5.0


class BrokerProcess:
    """`headrace start` on a free local port. The constructor returns when the broker accepts requests.

    It raises PipelineError if the broker exits or is not ready in 30 s.
    """

    def __init__(self, data: Path, log_path: Path) -> None:
        self.bootstrap = f"127.0.0.1:{_free_port()}"
        self._log_path = log_path
        command = [sys.executable, "-m", "headrace", "start", "--listen", self.bootstrap, "--data", str(data)]
        # The broker also stops if this process is killed.
        command.append("--until-eof")
        self._process = _start(command, log_path, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + _READY_S
        while not is_broker(self.bootstrap):
            status = self._process.poll()
            if status is not None or time.monotonic() > deadline:
                what = "does not respond" if status is None else f"exited at once ({_described(status)})"
                raise PipelineError(f"the broker {what}: see its log, {self._log_path}")
            time.sleep(0.02)

    def check(self) -> None:
        """Raise `PipelineError` if the broker has exited."""
        status = self._process.poll()
        if status is not None:
            raise PipelineError(f"the broker exited ({_described(status)}): see its log, {self._log_path}")

    def stop(self) -> None:
        """Shut the broker down, and wait until it has exited."""
        _stop(self._process, _BROKER_STOP_TIMEOUT_S)
        assert self._process.stdin is not None
        self._process.stdin.close()


class DriverProcess:
    """The demo's driver in its own session, so that Ctrl-C does not reach it and it can be stopped cleanly."""

    def __init__(
        self,
        bootstrap: str,
        lake: str,
        log_path: Path,
        *,
        prefix: str = "",
        overrides: Iterable[str] = (),
        lines: int | None = None,
    ) -> None:
        """`lines` is the number of lines that the jobs will read; None if unknown."""
        command = [sys.executable, "-m", "headrace.pipeline.demo.driver", "--bootstrap", bootstrap, "--lake", lake]
        command += [f"--prefix={prefix}", *(f"--set={text}" for text in overrides)]
        command += [] if lines is None else [f"--lines={lines}"]
        self._process = _start(command, log_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, name="driver", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The id of the process and of its process group, which also contains Spark's Java process."""
        return self._process.pid

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._events.put(json.loads(line))

    def finish(self) -> None:
        """Ask the driver to process the rest of the topic, report and exit."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(FINISH.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has exited; see `ended`

    def events(self) -> Iterator[dict[str, Any]]:
        """Yield the events since the last call."""
        while not self._events.empty():
            yield self._events.get()

    def ended(self) -> str | None:
        """Return how the driver exited; None while it runs, or while events are left to read."""
        status = self._process.poll()
        if status is None or self._reader.is_alive() or not self._events.empty():
            return None
        return _described(status)

    def stop(self) -> None:
        """Stop the driver, then kill the rest of its process group. A batch that this interrupts is repeated later."""
        _stop(self._process, _SPARK_STOP_TIMEOUT_S)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all processes of the group have exited
        self._reader.join(_SPARK_STOP_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def is_broker(bootstrap: str) -> bool:
    host, _, port = bootstrap.split(",", maxsplit=1)[0].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
        AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=5)
    except (OSError, ValueError, KafkaException):
        return False
    return True


def _start(command: list[str], log_path: Path, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=log, start_new_session=True)


def _stop(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _described(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
