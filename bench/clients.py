"""The load generators, as processes: Kafka's performance tools, and kcat for librdkafka."""

import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Final, Protocol

TIMEOUT_S: Final = 180.0


class Bootstrap(Protocol):
    """A broker or a cluster."""

    @property
    def address(self) -> str:
        """The bootstrap servers: HOST:PORT, several separated by commas."""


class ToolError(Exception):
    """A tool failed or printed no figures; the message contains its output."""


class KafkaTools:
    """Kafka's own ProducerPerformance, ConsumerPerformance and EndToEndLatency."""

    def __init__(self, jars: Path) -> None:
        self._class_path = f"{jars}/*"

    def produce(
        self,
        broker: Bootstrap,
        topic: str,
        *,
        records: int,
        warm_up: int,
        properties: list[str],
        lines: Path | None = None,
    ) -> float:
        """Send `records`. Return records per second without the first `warm_up`, during which the JVM compiles.

        Records have 100 bytes, or are random lines of the file `lines`.
        """
        content = ["--record-size", "100"] if lines is None else ["--payload-file", str(lines)]
        shown = self._run(
            "ProducerPerformance",
            *("--bootstrap-server", broker.address, "--topic", topic, "--throughput", "-1", *content),
            *("--num-records", str(records), "--warmup-records", str(warm_up), "--command-property", *properties),
        )
        return _figure(r"steady state records sent, ([0-9.]+) records/sec", shown)

    def consume(self, broker: Bootstrap, topic: str, *, records: int) -> float:
        """Return records per second from the first to the last fetch, without the time to join the group."""
        shown = self._run(
            "ConsumerPerformance",
            *("--bootstrap-server", broker.address, "--topic", topic, "--num-records", str(records), "--hide-header"),
            *("--timeout", "20000"),
        )
        columns = shown.strip().splitlines()[-1].split(", ")
        if len(columns) != 10 or int(columns[4]) < records:
            raise ToolError(f"ConsumerPerformance did not read {records} records:\n{shown}")
        return float(columns[9])

    def end_to_end(self, broker: Bootstrap, topic: str, *, records: int, acks: str = "1") -> float:
        """Send records one at a time. Return the mean time in ms from sending a record to receiving it."""
        shown = self._run("EndToEndLatency", broker.address, topic, str(records), acks, "100")
        return _figure(r"Avg latency: ([0-9.]+) ms", shown)

    def _run(self, tool: str, *arguments: str) -> str:
        return _run("java", "-cp", self._class_path, f"org.apache.kafka.tools.{tool}", *arguments)


class Kcat:
    """librdkafka's throughput, through kcat."""

    properties = (
        "-Xlinger.ms=5",
        # By default all records of 10 ms go to one partition: some partitions would get twice as many as others.
        "-Xsticky.partitioning.linger.ms=0",
        "-Xbatch.num.messages=10000",
        "-Xqueue.buffering.max.messages=1000000",
        "-Xfetch.message.max.bytes=1048576",
    )

    def __init__(self, directory: Path) -> None:
        self._lines = directory / "lines"

    @staticmethod
    def is_installed() -> bool:
        return shutil.which("kcat") is not None

    def produce(self, broker: Bootstrap, topic: str, *, records: int) -> float:
        """Send records of 100 bytes. Return records per second, including the start of kcat."""
        if not self._lines.exists() or self._lines.stat().st_size != records * 101:
            self._lines.write_bytes((b"%0100d\n" % 1) * records)
        begin = time.perf_counter()
        _run("kcat", "-P", "-b", broker.address, "-t", topic, "-l", str(self._lines), *self.properties)
        return records / (time.perf_counter() - begin)

    def consume(self, broker: Bootstrap, topic: str, *, records: int) -> float:
        """Read the whole topic. Return records per second, including the start of kcat."""
        begin = time.perf_counter()
        _run("kcat", "-C", "-b", broker.address, "-t", topic, "-o", "beginning", "-e", "-q", "-f", "", *self.properties)
        return records / (time.perf_counter() - begin)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"{' '.join(command[:6])} ... took more than {TIMEOUT_S:.0f} s") from None
    if done.returncode:
        raise ToolError(f"{' '.join(command)} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _figure(pattern: str, shown: str) -> float:
    match = re.search(pattern, shown)
    if match is None:
        raise ToolError(f"the output has no match for {pattern!r}:\n{shown}")
    return float(match.group(1))
