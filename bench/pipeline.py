"""`python -m bench.pipeline`: the Spark pipeline's throughput and latency on this machine, with the laptop profile.

First, all jobs process a backlog of lines with `--once`; their rate is compared with that of Spark's connector alone.
Then lines are produced at a steady rate. The latency of a line is the time until a `read_committed` consumer of the
topic `status-codes` sees counts that include it.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.brokers import Broker, Headrace, Kafka
from bench.process import family_cpu_seconds, peak_resident_bytes
from bench.termination import until_interrupted
from headrace.pipeline.generate.log import Record, log
from headrace.pipeline.generate.parameters import Parameters
from headrace.pipeline.generate.truth import Truth

JARS: Final = Path(os.environ.get("HEADRACE_KAFKA_JARS", ".build/jars/kafka"))
PARTITIONS: Final = 3
TOPIC: Final = "access-log"
PROGRESS: Final = "headrace.pipeline.progress"
COUNTS: Final = "status-codes"
_FIRST: Final = 100
"""Number of lines that must be counted before the others are sent."""
_WARM_UP_S: Final = 120.0
"""At a steady rate, Java has compiled most of the code that plans batches after about two minutes."""
_PATIENCE_S: Final = 300.0
_SLOWEST: Final = 2_000
"""Lines per second: the measurement fails if the jobs are slower, not counting their first minute."""

MakeBroker: TypeAlias = Callable[[Path], Broker]
"""Returns a broker that stores its data in the given directory."""


@dataclass(slots=True)
class JobTime:
    """The batches of a job: their number, input rows, and total duration in seconds."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Backlog:
    lines: int
    connector_s: float
    all_jobs_s: float
    """Includes the start of Spark."""
    all_jobs_cpu_s: float
    """CPU time of the driver and of Java: unlike the seconds, nearly the same on a busy machine."""
    peak_java_bytes: int
    jobs: Mapping[str, JobTime]

    @property
    def share(self) -> float:
        """The rate of all jobs together, divided by the connector's."""
        return self.connector_s / self.all_jobs_s


@dataclass(frozen=True, slots=True)
class Latency:
    rate: float
    lines: int
    p50_s: float
    p95_s: float
    longest_s: float
    jobs: Mapping[str, JobTime]
    """Includes the batches of the warm-up."""


def main() -> int:
    """Measure and print. Return the exit code: 2 if the measurement failed."""
    options = _parse()
    return until_interrupted(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="headrace-bench-", dir=options.dir) as directory:
        try:
            make = (lambda data: Kafka(data, JARS)) if options.kafka else Headrace
            backlog = measure_backlog(make, Path(directory) / "backlog", options.lines) if options.lines else None
            latency = measure_latency(make, Path(directory) / "latency", options.rate, options.seconds)
        except (RuntimeError, OSError) as error:
            sys.stderr.write(f"\n{error}\n")
            return 2
    if options.json:
        found = {"backlog": backlog and asdict(backlog), "latency": latency and asdict(latency)}
        json.dump(found, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        _print(backlog, latency)
    return 0


def measure_backlog(make: MakeBroker, directory: Path, lines: int) -> Backlog:
    """Put `lines` lines in a topic, and measure how long all jobs take for them. Raises RuntimeError."""
    with _broker(make, directory) as broker:
        _create(broker.address)
        _run(directory, "generate", "--topic", TOPIC, "--lines", str(lines), "--bootstrap", broker.address, "--quiet")
        connector_s = _connector(broker.address)
        begin = time.monotonic()
        with _pipeline(directory, broker.address, "--once") as process:
            peak, cpu_s = 0, 0.0
            while process.poll() is None:
                with suppress(FileNotFoundError, ProcessLookupError):
                    cpu_s = max(cpu_s, family_cpu_seconds(process.pid))
                    peak = max(peak, *(peak_resident_bytes(pid) for pid in _java(process.pid)), 0)
                if time.monotonic() - begin > 60 + lines / _SLOWEST:
                    raise RuntimeError(f"the jobs had not processed all lines after {60 + lines / _SLOWEST:.0f} s")
                time.sleep(0.2)
            all_s = time.monotonic() - begin
            _check(process, directory)
        return Backlog(lines, connector_s, all_s, cpu_s, peak, _job_times(broker.address))


def measure_latency(make: MakeBroker, directory: Path, rate: float, seconds: float) -> Latency | None:
    """Produce `rate` lines per second for `seconds` after a warm-up, and measure each line's latency. None for 0 s."""
    if not seconds:
        return None
    total = _FIRST + round(rate * (_WARM_UP_S + seconds))
    with _broker(make, directory) as broker:
        seen: list[tuple[float, int]] = []
        stop = threading.Event()
        lines = _lines(total)
        _create(broker.address)
        with _pipeline(directory, broker.address) as process:
            watcher = threading.Thread(target=_watch, args=(broker.address, seen, stop))
            watcher.start()
            try:
                # Once these lines are counted, all jobs are running.
                sent = _produce(broker.address, lines[:_FIRST], rate)
                _wait_for(_FIRST, seen, process, directory)
                sent += _produce(broker.address, lines[_FIRST:], rate)
                _wait_for(total, seen, process, directory)
            finally:
                stop.set()
                watcher.join()
            process.send_signal(signal.SIGTERM)
            process.wait(120)
        jobs = _job_times(broker.address)
    latencies = sorted(latencies_of(sent, seen, skip=total - round(rate * seconds)))
    at = [latencies[min(len(latencies) - 1, int(len(latencies) * share))] for share in (0.5, 0.95, 1.0)]
    return Latency(rate, len(latencies), at[0], at[1], at[2], jobs)


def _wait_for(
    count: int, seen: Sequence[tuple[float, int]], process: "subprocess.Popen[bytes]", directory: Path
) -> None:
    """Wait until the counts include `count` lines. Raises RuntimeError after five minutes, or if the jobs failed."""
    deadline = time.monotonic() + _PATIENCE_S
    while not seen or seen[-1][1] < count:
        _check(process, directory)
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {seen[-1][1] if seen else 0:,} of {count:,} lines were counted")
        time.sleep(0.1)


def latencies_of(sent: Sequence[float], seen: Sequence[tuple[float, int]], *, skip: int) -> Iterator[float]:
    """Yield the latency of each line after the first `skip`. `seen` has times, and the lines counted at each time."""
    counted = skip
    for at, count in seen:
        for number in range(counted, min(count, len(sent))):
            yield at - sent[number]
        counted = max(counted, count)


def _watch(bootstrap: str, seen: list[tuple[float, int]], stop: threading.Event) -> None:
    """Whenever the counts by status change, add the time and their sum to `seen`, until `stop` is set."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": 500,
            "allow.auto.create.topics": False,
        }
    )
    consumer.subscribe([COUNTS])
    requests: dict[str, int] = {}
    try:
        while not stop.is_set():
            messages = [each for each in consumer.consume(1000, 0.05) if each.error() is None]
            for message in messages:
                row = json.loads(message.value() or b"{}")
                requests[row["status"]] = row["requests"]
            if messages:
                seen.append((time.monotonic(), sum(requests.values())))
    finally:
        consumer.close()


def _lines(count: int) -> list[Record]:
    parameters = Parameters(lines=count, rate=500, start=int(time.time()), partitions=PARTITIONS)
    return list(log(parameters, Truth(PARTITIONS, lambda *_: None)))


def _produce(bootstrap: str, lines: Sequence[Record], rate: float) -> list[float]:
    """Send the lines at `rate` per second. Return the time when each was sent."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    sent: list[float] = []
    begin = time.monotonic()
    for number, (partition, key, line) in enumerate(lines):
        while (rest := begin + number / rate - time.monotonic()) > 0:
            producer.poll(0)
            time.sleep(min(rest, 0.005))
        producer.produce(TOPIC, line, key, partition)
        sent.append(time.monotonic())
    producer.flush(30)
    return sent


def _job_times(bootstrap: str) -> dict[str, JobTime]:
    """Sum up the batches in the progress topic, by job."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.partition.eof": True})
    consumer.assign([TopicPartition(PROGRESS, 0, 0)])
    jobs: defaultdict[str, JobTime] = defaultdict(JobTime)
    last: dict[str, int] = {}
    try:
        while (message := consumer.poll(10)) is not None:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    break
                raise RuntimeError(error.str())
            found: dict[str, Any] = json.loads(message.value() or b"{}")
            job, batch = found["job"], found["batch"]
            if batch is None or batch == last.get(job):
                continue
            last[job] = batch
            jobs[job].batches += 1
            jobs[job].rows += found["input_rows"]
            jobs[job].seconds += found["durations_ms"].get("batch", 0) / 1000
    finally:
        consumer.close()
    return dict(jobs)


def _connector(bootstrap: str) -> float:
    """Return the seconds that Spark's connector alone takes to read all lines, in batches of the jobs' size."""
    command = [sys.executable, "-m", "bench.connector", bootstrap, TOPIC]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path.cwd(), check=False)
    if result.returncode:
        raise RuntimeError(result.stderr)
    return float(result.stdout.split()[-1])


@contextmanager
def _broker(make: MakeBroker, directory: Path) -> Iterator[Broker]:
    directory.mkdir(parents=True)
    broker = make(directory / "broker")
    try:
        broker.start()
        yield broker
    finally:
        broker.remove()


def _create(bootstrap: str) -> None:
    new = NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1)
    # Kept in a variable: when the client is collected, its replies are lost.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([new])[TOPIC].result(30)


@contextmanager
def _pipeline(directory: Path, bootstrap: str, *options: str) -> "Iterator[subprocess.Popen[bytes]]":
    """Run all jobs in a process, and kill it at the end if it is still running."""
    config = directory / "pipeline.toml"
    config.write_text(
        f'[cluster]\nbootstrap = "{bootstrap}"\n[place]\nlake = "lake"\n'
        f'[jobs.raw]\ntopic = "{TOPIC}"\n[jobs.events]\ntopic = "{TOPIC}"\n'
    )
    command = [sys.executable, "-m", "headrace", "pipeline", "run", "--config", str(config), *options]
    with (directory / "run.log").open("ab") as log_file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file)
    try:
        yield process
    finally:
        if process.poll() is None:
            for pid in [*_java(process.pid), process.pid]:
                os.kill(pid, signal.SIGKILL)
            process.wait()


def _check(process: "subprocess.Popen[bytes]", directory: Path) -> None:
    if process.poll() not in {None, 0}:
        raise RuntimeError((directory / "run.log").read_text(errors="replace")[-3000:])


def _run(directory: Path, *words: str) -> None:
    command = [sys.executable, "-m", "headrace", "pipeline", *words]
    result = subprocess.run(command, capture_output=True, text=True, cwd=directory, check=False)
    if result.returncode:
        raise RuntimeError(result.stderr)


def _java(pid: int) -> list[int]:
    """Return the ids of the Java processes that a process started, directly or indirectly."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            try:
                name = Path(f"/proc/{child}/comm").read_text().strip()
            except FileNotFoundError:
                continue
            found += [child] if name == "java" else _java(child)
    return found


def _print(backlog: Backlog | None, latency: Latency | None) -> None:
    if backlog is not None:
        lines, out = backlog.lines, sys.stdout
        out.write(f"{lines:,} lines, laptop profile\n")
        out.write(f"  connector alone    {backlog.connector_s:7.1f} s  {lines / backlog.connector_s:9,.0f} lines/s\n")
        out.write(f"  all jobs           {backlog.all_jobs_s:7.1f} s  {lines / backlog.all_jobs_s:9,.0f} lines/s\n")
        out.write(f"  CPU time           {backlog.all_jobs_cpu_s:7.1f} s\n")
        out.write(f"  share of the connector's rate  {backlog.share:.0%}\n")
        out.write(f"  peak memory of Java  {backlog.peak_java_bytes / 1e6:,.0f} MB\n")
        _print_jobs(backlog.jobs)
    if latency is not None:
        sys.stdout.write(
            f"\n{latency.rate:,.0f} lines/s, produce to result topic: p50 {latency.p50_s:.1f} s, "
            f"p95 {latency.p95_s:.1f} s, longest {latency.longest_s:.1f} s\n"
        )
        _print_jobs(latency.jobs)


def _print_jobs(jobs: Mapping[str, JobTime]) -> None:
    sys.stdout.write(f"\n  {'job':<14}{'batches':>8}{'rows':>12}{'seconds':>9}{'rows/s':>10}\n")
    for name, job in jobs.items():
        rate = job.rows / job.seconds if job.seconds else 0
        sys.stdout.write(f"  {name:<14}{job.batches:>8}{job.rows:>12,}{job.seconds:>9.1f}{rate:>10,.0f}\n")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__.partition("\n")[0])
    parser.add_argument("--lines", type=int, default=2_000_000, help="lines in the backlog; 0 to skip this measurement")
    parser.add_argument("--rate", type=float, default=500, help="lines per second for the latency")
    parser.add_argument("--seconds", type=float, default=60, help="length of the latency measurement; 0 to skip it")
    parser.add_argument("--kafka", action="store_true", help="use Apache Kafka 4.3.1 instead of Headrace")
    parser.add_argument("--dir", type=Path, help="directory for all data (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
