"""The two brokers as processes, with the same settings, random ports, and data on the same file system."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench import process, raw_client

SETTINGS: Final = {
    # Delete the files of topics before the next measurement, so that the page cache stays warm for both.
    "log.segment.delete.delay.ms": "1000",
    # The same check interval for both, so that waiting for compaction does not affect the figures.
    "log.cleaner.backoff.ms": "1000",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
}
"""Settings of both brokers; all others keep their defaults."""

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 60.0
_FORMAT: Final = ("kafka.tools.StorageTool", "format")
_CLUSTER_ID: Final = "aGVhZHJhY2UtYmVuY2gxMg"


@contextmanager
def _signals_delayed() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until the end of the context: until then, a new process would not be stopped."""
    pending: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: pending.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for item in pending[:1]:
            signal.raise_signal(item)


class Broker(ABC):
    """A broker process with its own `directory`, which `remove` deletes."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @abstractmethod
    def command(self) -> Sequence[str | Path]:
        """Return the command to run."""

    def environment(self) -> dict[str, str]:
        """Return this process's environment without PYTHONDONTWRITEBYTECODE: an installed package has byte code."""
        return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def start(self) -> float:
        """Start the broker. Return the seconds from exec to its first reply. Raises RuntimeError with the log's end."""
        begin = time.perf_counter()
        self.spawn()
        self.wait_for_answer()
        return time.perf_counter() - begin

    def spawn(self) -> None:
        """Start the process without waiting for it."""
        with (self.directory / "broker.log").open("ab") as log, _signals_delayed():
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()
            )

    def wait_for_answer(self) -> None:
        """Wait for the broker's first reply. Raises RuntimeError with the log's end."""
        try:
            raw_client.wait_for_answer(self.port, START_TIMEOUT_S)
        except TimeoutError as error:
            raise RuntimeError(f"{self.name} does not answer: {error}\n{self.log_tail()}") from error

    def wait_for_port(self) -> None:
        """Wait until the process accepts connections. Raises RuntimeError with the log's end."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            self.check_alive()
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} still does not listen on port {self.port}:\n{self.log_tail()}")
            time.sleep(0.1)

    def log_tail(self) -> str:
        return "\n".join((self.directory / "broker.log").read_text(errors="replace").splitlines()[-20:])

    def check_alive(self) -> None:
        """Raise RuntimeError with the log's end if the broker has exited."""
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"{self.name} exited with status {self._process.returncode}:\n{self.log_tail()}")

    def cpu_seconds(self) -> float:
        return process.cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        return process.resident_bytes(self.pid)

    def peak_resident_bytes(self) -> int:
        return process.peak_resident_bytes(self.pid)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def remove(self) -> None:
        """Kill the broker and delete its directory."""
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Headrace(Broker):
    name = "Headrace"

    def command(self) -> Sequence[str | Path]:
        settings = [f"--set={key}={value}" for key, value in SETTINGS.items()]
        data = self.directory / "data"
        return [sys.executable, "-m", "headrace", "start", "--listen", self.address, "--data", data, *settings]


class JavaBroker(Broker):
    """Apache Kafka, with the heap and garbage collector of its start script."""

    name = "Kafka"
    java_options: tuple[str, ...] = (
        "-Xmx1G",
        "-Xms1G",
        "-server",
        "-XX:+UseG1GC",
        "-XX:MaxGCPauseMillis=20",
        "-XX:InitiatingHeapOccupancyPercent=35",
        "-XX:+ExplicitGCInvokesConcurrent",
        "-Djava.awt.headless=true",
    )

    def __init__(self, directory: Path, jars: Path) -> None:
        super().__init__(directory)
        self._class_path = f"{jars}/*"
        self._settings = directory / "server.properties"

    def configure(self, settings: Mapping[str, str]) -> None:
        self._settings.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))

    def format(self, cluster_id: str) -> None:
        """Format the data directory of a KRaft node. Raises RuntimeError with the output if that fails."""
        formatted = subprocess.run(
            ["java", "-cp", self._class_path, *_FORMAT, "-t", cluster_id, "-c", str(self._settings)],
            capture_output=True,
            text=True,
            check=False,
        )
        if formatted.returncode:
            raise RuntimeError(f"could not format Kafka's data directory:\n{formatted.stdout}{formatted.stderr}")

    def command(self) -> Sequence[str | Path]:
        return ["java", *self.java_options, "-cp", self._class_path, "kafka.Kafka", self._settings]


class Kafka(JavaBroker):
    """A single KRaft node."""

    def __init__(self, directory: Path, jars: Path) -> None:
        super().__init__(directory, jars)
        controller = free_port()
        self.configure(
            {
                "process.roles": "broker,controller",
                "node.id": "0",
                "controller.quorum.voters": f"0@127.0.0.1:{controller}",
                "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
                "controller.listener.names": "CONTROLLER",
                "log.dirs": str(directory / "data"),
                **SETTINGS,
            }
        )
        self.format(_CLUSTER_ID)


def free_port() -> int:
    """Return a port that is currently free."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
