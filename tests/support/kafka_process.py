"""Apache Kafka as a process, to compare Headrace with: one KRaft node."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Self

import pytest

from headrace.testing import TEST_SETTINGS
from tests.support.broker_process import answers_api_versions
from tests.support.ports import free_port

JARS_VARIABLE: Final = "HEADRACE_KAFKA_JARS"
"""A directory with Kafka's jars; by default, the one `make setup` fills."""
ADDRESS_VARIABLE: Final = "HEADRACE_KAFKA_ADDRESS"
"""HOST:PORT of a running Apache Kafka with `SETTINGS`, used instead of starting one."""
_PROJECT: Final = Path(__file__).parents[2]
_CLUSTER_ID: Final = "aGVhZHJhY2UtcGFyaXR5MQ"

SETTINGS: Final[Mapping[str, str]] = {
    **TEST_SETTINGS,
    "num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "50",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "offsets.retention.check.interval.ms": "600000",
    # small enough for a test to fill a group
    "group.max.size": "3",
    "group.consumer.max.size": "3",
    # compaction and retention would change the logs during a comparison
    "log.cleaner.enable": "false",
    "log.retention.ms": "-1",
}
"""The settings that differ from Kafka's defaults."""

_START_S: Final = 90.0
_JAVA_OPTIONS: Final = ("-Xmx384M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
"""They shorten the start on a small machine; speed is not compared."""


class KafkaProcess:
    """A broker as a context manager, with its log in `log_path`."""

    def __init__(self, directory: Path, jars: Path) -> None:
        self.directory = directory
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.log_path = directory / "kafka.log"
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        settings = self._write_settings()
        with self.log_path.open("wb") as log:
            arguments = ("format", "-t", _CLUSTER_ID, "-c", str(settings))
            subprocess.run(self._java("kafka.tools.StorageTool", *arguments), stdout=log, stderr=log, check=True)
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(settings)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
            )
        deadline = time.monotonic() + _START_S
        host, _, port = self.bootstrap.rpartition(":")
        while not answers_api_versions(host, int(port)):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"Kafka did not start; its log:\n{self.log_path.read_text(errors='replace')}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _java(self, main: str, *arguments: str) -> list[str]:
        return ["java", *_JAVA_OPTIONS, *shared_classes(self._jars), "-cp", f"{self._jars}/*", main, *arguments]

    def _write_settings(self) -> Path:
        controller = f"127.0.0.1:{free_port()}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.directory / "data"),
            **SETTINGS,
        }
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return path


def kafka_classes(jars: Path) -> Path:
    """Return the path of the archive with a broker's classes that `make setup` creates for these jars."""
    return jars.with_name(f"{jars.name}-broker.jsa")


def shared_classes(jars: Path) -> tuple[str, ...]:
    """Return the Java options that use the archive, if it exists. Java ignores one of other jars or another Java."""
    archive = kafka_classes(jars)
    return (f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off") if archive.is_file() else ()


def kafka_jars() -> Path:
    """Return the directory of Kafka's jars. Skips the test if they or Java are missing."""
    if shutil.which("java") is None:
        pytest.skip("Java 17 is not installed")
    jars = Path(os.environ.get(JARS_VARIABLE) or _PROJECT / ".build" / "jars" / "kafka")
    if not any(jars.glob("kafka_2.13-*.jar")):
        pytest.skip(f"no Kafka in {jars}: run `make setup`, or set {JARS_VARIABLE} to a directory with its jars")
    return jars


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an Apache Kafka, shared by the session."""
    running = os.environ.get(ADDRESS_VARIABLE)
    if running:
        yield running
        return
    with KafkaProcess(tmp_path_factory.mktemp("kafka"), kafka_jars()) as kafka:
        yield kafka.bootstrap
