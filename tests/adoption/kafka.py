"""Apache Kafka as the previous or the next broker of a data directory."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Self

import pytest

from tests.support.broker_process import answers_api_versions
from tests.support.kafka_process import kafka_jars, shared_classes
from tests.support.ports import free_port
from tests.support.waiting import wait_for

ZOOKEEPER_JARS: Final = Path(
    os.environ.get("HEADRACE_KAFKA39_JARS") or Path(__file__).parents[2] / ".build" / "jars" / "kafka-3.9"
)
"""The jars of Kafka 3.9 with its tools; by default, those that `make setup` fetches."""
CLUSTER_ID: Final = "aGVhZHJhY2UtYWRvcHQtMQ"
NODE_ID: Final = 7
"""Not Headrace's default: a broker with this id has read it from the directory."""

SETTINGS: Final[Mapping[str, str]] = {
    "offsets.topic.num.partitions": "3",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "4000000",
    "log.initial.task.delay.ms": "100",
    # Kafka preallocates its index files to this size.
    "log.index.size.max.bytes": "100000",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
}
_JAVA_OPTIONS: Final = (
    "-Xmx320M",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    f"-Dlog4j.configuration=file:{Path(__file__).with_name('log4j.properties')}",
)


class Java:
    """A JVM that listens on a port; its output goes to `log_path`. `launcher` is a command that executes others."""

    def __init__(self, jars: Path, log_path: Path, *, launcher: Sequence[str] = ()) -> None:
        self._jars = jars
        self._launcher = launcher
        self.log_path = log_path
        self.archive: Path | None = None
        """Write an archive of the loaded classes here at the end, instead of using the one from `make setup`."""
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, main: str, *arguments: str) -> list[str]:
        shared = [f"-XX:ArchiveClassesAtExit={self.archive}"] if self.archive else shared_classes(self._jars)
        return [*self._launcher, "java", *_JAVA_OPTIONS, *shared, "-cp", f"{self._jars}/*", main, *arguments]

    def start(self, main: str, *arguments: str) -> None:
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(main, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log_path.parent,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def is_dead(self) -> bool:
        return self._process is None or self._process.poll() is not None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Pause the process."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def send(self, what: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(what)

    def end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None


class Kafka:
    """One broker, as a context manager; `settings` are added to `SETTINGS`."""

    def __init__(self, directory: Path, settings: Mapping[str, str], *, jars: Path, data: Path | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.data = data or directory / "data"
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.settings = {**SETTINGS, "log.dirs": str(self.data), **settings}
        self._java = Java(jars, directory / "kafka.log")

    def start(self) -> None:
        path = self.directory / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        self._prepare(path)
        self._java.start("kafka.Kafka", str(path))
        host, _, port = self.bootstrap.rpartition(":")
        deadline = time.monotonic() + 120
        while not answers_api_versions(host, int(port)):
            if self._java.is_dead() or time.monotonic() > deadline:
                self.sigkill()
                raise AssertionError(f"Kafka does not start; its log:\n{self.log()[-8000:]}")
            time.sleep(0.05)

    def _prepare(self, settings: Path) -> None:
        """Run before the first start."""

    def archive_classes(self, archive: Path) -> None:
        """Start and stop the broker, and write an archive of the classes that it has loaded."""
        self._java.archive = archive
        try:
            self.start()
        finally:
            self.sigterm()

    def sigterm(self) -> None:
        self._java.end(signal.SIGTERM)

    def sigkill(self) -> None:
        self._java.end(signal.SIGKILL)

    def pause(self) -> None:
        self._java.send(signal.SIGSTOP)

    def resume(self) -> None:
        self._java.send(signal.SIGCONT)

    @property
    def running(self) -> bool:
        return not self._java.is_dead()

    @property
    def pid(self) -> int:
        return self._java.pid

    def frozen(self) -> AbstractContextManager[None]:
        """Pause the broker: its directory is then in the state that a kill would leave."""
        return self._java.frozen()

    def log(self) -> str:
        return self._java.log_path.read_text(errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.sigkill()


class Kraft(Kafka):
    """Kafka 4.3 as a single-node quorum, with the metadata log in the data directory."""

    def __init__(
        self, directory: Path, settings: Mapping[str, str] | None = None, *, features: Mapping[str, int] | None = None
    ) -> None:
        """`features` override Kafka's newest levels."""
        super().__init__(directory, settings or {}, jars=kafka_jars())
        self._features = [f"{name}={level}" for name, level in (features or {}).items()]
        controller = f"127.0.0.1:{free_port()}"
        self.settings |= {
            "process.roles": "broker,controller",
            "node.id": str(NODE_ID),
            "controller.quorum.voters": f"{NODE_ID}@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "controller.listener.names": "CONTROLLER",
        }

    def _prepare(self, settings: Path) -> None:
        if not self.data.exists():
            levels = [argument for feature in self._features for argument in ("--feature", feature)]
            arguments = ("format", "-t", CLUSTER_ID, "-c", str(settings), *levels)
            with self._java.log_path.open("ab") as log:
                subprocess.run(self._java.command("kafka.tools.StorageTool", *arguments), stdout=log, check=True)


class ZooKeeper:
    """A ZooKeeper server from Kafka's jars, as a context manager."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._settings = directory / "zoo.cfg"
        self._settings.write_text(
            f"dataDir={directory / 'data'}\nclientPort={self._port}\nclientPortAddress=127.0.0.1\n"
            "admin.enableServer=false\ntickTime=1000\nmaxClientCnxns=0\n"
        )
        self._java = Java(zookeeper_jars(), directory / "zookeeper.log")

    def __enter__(self) -> Self:
        self._java.start("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._settings))
        # It listens before it answers, and Kafka waits for the answer for only 18 s.
        try:
            wait_for(self._answers, f"an answer of ZooKeeper at {self.address}", timeout_s=120)
        except BaseException:
            self._java.end(signal.SIGKILL)
            raise
        return self

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 5) as connection:
                connection.sendall(b"srvr")
                return connection.recv(9) == b"Zookeeper"
        except OSError:
            return False

    def __exit__(self, *_: object) -> None:
        self._java.end(signal.SIGKILL)


class WithZooKeeper(Kafka):
    """Kafka 3.9 with its metadata in the ZooKeeper at `zookeeper`."""

    def __init__(
        self, directory: Path, zookeeper: str, settings: Mapping[str, str] | None = None, *, data: Path | None = None
    ) -> None:
        super().__init__(directory, settings or {}, jars=zookeeper_jars(), data=data)
        self.settings |= {
            "broker.id": str(NODE_ID),
            "zookeeper.connect": zookeeper,
            "listeners": f"PLAINTEXT://{self.bootstrap}",
        }
        self._zookeeper = zookeeper

    def restart_after_a_kill(self) -> None:
        """Kill the broker, wait until its registration has expired, and start it again."""
        from kazoo.client import KazooClient

        self.sigkill()
        client = KazooClient(self._zookeeper)
        client.start(20)
        try:
            path = f"/brokers/ids/{self.settings['broker.id']}"
            wait_for(lambda: client.exists(path) is None, f"{path} is gone", timeout_s=40)
        finally:
            client.stop()
            client.close()
        self.start()


def zookeeper_jars() -> Path:
    """Return the jars of the last Kafka with ZooKeeper; skip the test if they or Java are missing."""
    if shutil.which("java") is None:
        pytest.skip("Java 17 is not installed")
    if not any(ZOOKEEPER_JARS.glob("kafka_2.13-*.jar")):
        pytest.skip(f"{ZOOKEEPER_JARS} has no Kafka: run `make setup`")
    return ZOOKEEPER_JARS
