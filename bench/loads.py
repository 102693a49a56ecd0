"""Generate the loads and measure them, on one broker at a time."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from bench import frames, raw_client
from bench.brokers import Broker
from bench.clients import KafkaTools, Kcat
from bench.topics import PARTITIONS, fresh_topic, record_count

SMALL_BATCHES: Final = ["batch.size=8196"]
LARGE_BATCHES: Final = ["batch.size=65536", "linger.ms=5"]
DEFAULT_BATCHES: Final = ["batch.size=16384", "linger.ms=5"]
FROM_START: Final = frozenset({"produce-small.cpu", "produce-large.cpu"})
"""Rows that are also averaged over all rounds since the broker's start, including the warm-up."""
IN_FLIGHT: Final = 64
_FEW_IN_FLIGHT: Final = 5

Sample = dict[str, float]
"""Figures by row key, e.g. `produce-small.cpu`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Numbers of records, seconds, and rounds after the warm-up.

    In a round, each broker has `turns` of a short load, and consumers read a topic `readings` times, because single
    readings vary by a tenth.
    """

    rounds: int
    turns: int
    readings: int
    small_records: int
    large_records: int
    kcat_records: int
    lines: int
    latency_records: int
    seconds: float
    starts: int
    first_loads: int
    crashes: int
    crash_seconds: float

    @property
    def warm_up_bytes(self) -> int:
        """Approximate bytes that a round writes to the page cache before its topics are deleted."""
        return self.turns * (110 * (self.small_records + self.large_records + self.kcat_records) + 260 * self.lines)


FULL: Final = Scale(
    rounds=5,
    turns=3,
    readings=11,
    small_records=1_500_000,
    large_records=1_700_000,
    kcat_records=3_000_000,
    lines=1_000_000,
    latency_records=4_000,
    seconds=3.0,
    starts=5,
    first_loads=3,
    crashes=2,
    crash_seconds=5.0,
)
QUICK: Final = Scale(
    rounds=2,
    turns=1,
    readings=3,
    small_records=1_000_000,
    large_records=1_500_000,
    kcat_records=1_000_000,
    lines=400_000,
    latency_records=1_000,
    seconds=1.0,
    starts=3,
    first_loads=2,
    crashes=1,
    crash_seconds=2.0,
)


@dataclass(frozen=True, slots=True)
class Load:
    """A kind of load. `run` runs it on a broker in one or more turns, and yields the figures of each turn."""

    title: str
    run: Callable[[Broker], Iterator[Sample]]


class Loads:
    """All loads at a scale."""

    def __init__(self, scale: Scale, tools: KafkaTools, directory: Path) -> None:
        self._scale = scale
        self._tools = tools
        self._kcat = Kcat(directory)
        self._lines = directory / "lines-of-different-lengths"

    def all(self) -> list[Load]:
        loads = [
            Load("producing with small batches", self._produce_small),
            Load("producing with large batches, consuming", self._produce_large_and_consume),
            Load("producing lines of different lengths", self._produce_lines),
            Load("producing keyed records with headers, and JSON", self._produce_records),
            Load("one record at a time", self._synchronous),
            Load(f"{IN_FLIGHT} one-record requests in flight", self._in_flight),
            Load("end to end", self._end_to_end),
        ]
        if Kcat.is_installed():
            loads.insert(2, Load("librdkafka", self._librdkafka))
        return loads

    def produce_first(self, broker: Broker) -> Sample:
        """Produce small batches to a broker that was just started."""
        with fresh_topic(broker, "first") as topic:
            return self._produce(broker, topic, "produce-first", self._scale.small_records, SMALL_BATCHES)

    def _produce_small(self, broker: Broker) -> Iterator[Sample]:
        for _ in range(self._scale.turns):
            with fresh_topic(broker, "small") as topic:
                sample = self._produce(broker, topic, "produce-small", self._scale.small_records, SMALL_BATCHES)
            yield sample

    def _produce_large_and_consume(self, broker: Broker) -> Iterator[Sample]:
        records = self._scale.turns * self._scale.large_records
        with fresh_topic(broker, "large") as topic:
            for _ in range(self._scale.turns):
                yield self._produce(broker, topic, "produce-large", self._scale.large_records, LARGE_BATCHES)
            for _ in range(self._scale.readings):
                _write_back()
                with _cpu_per_million(broker, "consume", records) as sample:
                    sample["consume.rate"] = self._tools.consume(broker, topic, records=records)
                yield sample

    def _produce_lines(self, broker: Broker) -> Iterator[Sample]:
        if not self._lines.exists():
            rng = Random(1)
            lengths = [rng.randrange(80, 420) for _ in range(10_000)]
            self._lines.write_text("".join("x" * length + "\n" for length in lengths))
        for _ in range(self._scale.turns):
            with fresh_topic(broker, "lines") as topic:
                sample = self._produce(broker, topic, "produce-lines", self._scale.lines, DEFAULT_BATCHES, self._lines)
            yield sample

    def _produce(
        self,
        broker: Broker,
        topic: str,
        row: str,
        records: int,
        properties: list[str],
        lines: Path | None = None,
    ) -> Sample:
        before = record_count(broker, topic)
        with _cpu_per_million(broker, row, records) as sample:
            sample[f"{row}.rate"] = self._tools.produce(
                broker, topic, records=records, warm_up=records // 4, properties=properties, lines=lines
            )
        _check_count(broker, topic, before + records)
        return sample

    def _produce_records(self, broker: Broker) -> Iterator[Sample]:
        """Produce realistic records, from a client that needs hardly any CPU."""
        for row, per_batch in (
            *((f"produce-keyed{suffix}", 150) for suffix in ("", "-zstd", "-lz4")),
            ("produce-json", 60),
        ):
            with fresh_topic(broker, "records") as topic:
                if row == "produce-json":
                    frame = frames.produce_json(topic, range(PARTITIONS), records=per_batch)
                else:
                    codec = row.removeprefix("produce-keyed").lstrip("-") or "none"
                    frame = frames.produce_keyed(topic, range(PARTITIONS), records=per_batch, codec=codec)
                raw_client.pipelined(broker.port, frame, in_flight=_FEW_IN_FLIGHT, seconds=self._scale.seconds / 3)
                records, seconds = record_count(broker, topic), broker.cpu_seconds()
                rate = raw_client.pipelined(broker.port, frame, in_flight=_FEW_IN_FLIGHT, seconds=self._scale.seconds)
                used = broker.cpu_seconds() - seconds
                written = record_count(broker, topic) - records
                sample = {f"{row}.rate": rate * per_batch * PARTITIONS, f"{row}.cpu": used / written * 1e6}
            yield sample

    def _librdkafka(self, broker: Broker) -> Iterator[Sample]:
        records = self._scale.kcat_records
        for turn in range(self._scale.turns):
            with fresh_topic(broker, "librdkafka") as topic:
                before = record_count(broker, topic)
                with _cpu_per_million(broker, "rdkafka-produce", records) as produced:
                    produced["rdkafka-produce.rate"] = self._kcat.produce(broker, topic, records=records)
                _check_count(broker, topic, before + records)
                yield produced
                for _ in range(0 if turn else self._scale.readings):
                    _write_back()
                    with _cpu_per_million(broker, "rdkafka-consume", records) as consumed:
                        consumed["rdkafka-consume.rate"] = self._kcat.consume(broker, topic, records=records)
                    yield consumed

    def _synchronous(self, broker: Broker) -> Iterator[Sample]:
        with fresh_topic(broker, "synchronous") as topic:
            for _ in range(self._scale.turns):
                latencies = raw_client.synchronous(broker.port, topic, self._scale.seconds)
                yield {"sync.p50": latencies.p50, "sync.p99": latencies.p99, "sync.p999": latencies.p999}

    def _in_flight(self, broker: Broker) -> Iterator[Sample]:
        with fresh_topic(broker, "flight") as topic:
            frame = frames.produce(topic, range(1), records=1, record_size=100)
            rate = raw_client.pipelined(broker.port, frame, in_flight=IN_FLIGHT, seconds=self._scale.seconds)
        yield {"in-flight.rate": rate}

    def _end_to_end(self, broker: Broker) -> Iterator[Sample]:
        with fresh_topic(broker, "end-to-end") as topic:
            for _ in range(self._scale.turns):
                yield {"end-to-end.mean": self._tools.end_to_end(broker, topic, records=self._scale.latency_records)}


def start(broker: Broker) -> Sample:
    """Start a broker on an empty directory. Return the seconds to its first reply, and its memory in MB."""
    seconds = broker.start()
    return {"start.seconds": seconds, "start.memory": broker.resident_bytes() / 1e6}


def crash(broker: Broker, seconds: float) -> Sample:
    """Kill a broker under load and restart it. Return the seconds from exec until every partition accepts a record."""
    with fresh_topic(broker, "crash") as topic:
        frame = frames.produce(topic, range(PARTITIONS), records=150, record_size=100)
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(raw_client.pipelined, broker.port, frame, in_flight=5, seconds=seconds + 60)
            done, _ = wait([load], timeout=seconds)
            broker.kill()
        if done or not isinstance(load.exception(), OSError):
            raise RuntimeError(f"the load ended before {broker.name} was killed: {load.exception()}")
        begin = time.perf_counter()
        broker.start()
        raw_client.wait_for_produce(broker.port, topic, PARTITIONS, 60.0)
        return {"restart.seconds": time.perf_counter() - begin}


def _write_back() -> None:
    """Write dirty pages, about 1 GB, to disk now instead of while consumers are measured."""
    os.sync()


@contextmanager
def _cpu_per_million(broker: Broker, row: str, records: int) -> Iterator[Sample]:
    """Yield a sample, and add to it the broker's CPU seconds per million records within this context."""
    before = broker.cpu_seconds()
    sample: Sample = {}
    yield sample
    sample[f"{row}.cpu"] = (broker.cpu_seconds() - before) / records * 1e6


def _check_count(broker: Broker, topic: str, expected: int) -> None:
    found = record_count(broker, topic)
    if found != expected:
        raise RuntimeError(f"{broker.name} has {found} records, but {expected} were sent: the figures are invalid")
