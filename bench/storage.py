"""`python -m bench --storage`: the cost of large logs, compared with Apache Kafka.

Measures opening a cold log, fetching from a large log, appending while others read cold data, and compaction. Needs
21 GB of disk and about ten minutes; `--quick` needs 3 GB and about five.
"""

import multiprocessing
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from bench import frames, process, raw_client
from bench.brokers import Broker
from bench.figures import Figures

_TIMEOUT_S: Final = 30.0
_MB: Final = 1_000_000
_GB: Final = 1000 * _MB
_FETCHES: Final = 2000
_FETCH_BYTES: Final = 65536
_READERS: Final = 4
_READ_MB_S: Final = 50
"""Limit per reader: four unlimited readers would leave no CPU for the measuring client."""
_WARM_RECORDS: Final = 100_000
"""Number of records that readers of warm data read: few enough to take less than a second."""
_VALUE_SIZE: Final = 1000
_SMALL_VALUE_SIZE: Final = 100
_SMALL_SHARE: Final = 4
"""Divisor of the bytes to compact in small records: the cost of compaction depends on the number of records."""
_KEYED_BATCH_BYTES: Final = 500_000
_CLEANED_S: Final = 300.0
_IDLE_S: Final = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Bytes to write for the figures of fetching, opening and compacting, and seconds per latency figure."""

    fetched: tuple[int, ...]
    reopened: int
    compacted: int
    latency_s: float


FULL: Final = Scale(fetched=(10 * _MB, 100 * _MB, _GB, 20 * _GB), reopened=10 * _GB, compacted=_GB, latency_s=10.0)
QUICK: Final = Scale(fetched=(10 * _MB, 200 * _MB, 2 * _GB), reopened=2 * _GB, compacted=200 * _MB, latency_s=4.0)


class StorageFigures(Figures):
    def __init__(self, scale: Scale, jars: Path, directory: Path, *, with_kafka: bool) -> None:
        super().__init__(jars, directory, with_kafka=with_kafka)
        self._scale = scale

    def measure(self) -> None:
        for make in self._makers:
            for measurement in (self._growing, self._reopening, self._compacting):
                broker = make()
                try:
                    broker.start()
                    measurement(broker)
                finally:
                    broker.remove()

    # -- reading a log that grows --------------------------------------------------------------------------------------

    def _growing(self, broker: Broker) -> None:
        _create(broker, "grown", 1)
        written = records = 0
        for size in self._scale.fetched:
            records += _write(broker, "grown", 1, size - written)
            written = size
            label = f"{size // _MB:,} MB"
            median_us, cpu = _fetch_at_random(broker, "grown", records)
            self.note(f"fetch at a random offset of {label}, p50 us", broker, median_us)
            self.note(f"fetch at a random offset of {label}, broker CPU us", broker, cpu)
        _create(broker, "hot", 1)
        self.note("one record at a time, p99 ms", broker, self._synchronous(broker).p99)
        # Readers use CPU in both cases: the difference is the effect of the disk.
        for kind, among in (("warm", min(records, _WARM_RECORDS)), ("cold", records)):
            if kind == "cold":
                _drop_page_cache()
            with _readers(broker, "grown", among):
                meanwhile = self._synchronous(broker)
            label = f"one record at a time while {_READERS} readers read {_READ_MB_S} MB/s of {kind} data each"
            self.note(f"{label}, p99 ms", broker, meanwhile.p99)

    def _synchronous(self, broker: Broker) -> raw_client.Latencies:
        raw_client.wait_for_produce(broker.port, "hot", 1, _TIMEOUT_S)
        return raw_client.synchronous(broker.port, "hot", self._scale.latency_s)

    # -- opening -------------------------------------------------------------------------------------------------------

    def _reopening(self, broker: Broker) -> None:
        label = f"{self._scale.reopened // _MB:,} MB in 6 partitions"
        _create(broker, "reopened", 6)
        _write(broker, "reopened", 6, self._scale.reopened)
        for how, end in (("a clean stop", broker.stop), ("kill -9", broker.kill)):
            end()
            _drop_page_cache()
            begin = time.perf_counter()
            broker.start()
            raw_client.wait_for_produce(broker.port, "reopened", 6, 120.0)
            self.note(f"{label}, cold, after {how}: exec to records accepted, s", broker, time.perf_counter() - begin)

    # -- compaction ----------------------------------------------------------------------------------------------------

    def _compacting(self, broker: Broker) -> None:
        _create(broker, "hot", 1)
        # Not counted: in the first pass, Java compiles hot code.
        self._compact(broker, "warm-up", self._scale.compacted // 5, _VALUE_SIZE)
        alone = self._synchronous(broker)
        self.note("one record at a time before compaction, p99 ms", broker, alone.p99)
        for value_size, size in (
            (_VALUE_SIZE, self._scale.compacted),
            (_SMALL_VALUE_SIZE, self._scale.compacted // _SMALL_SHARE),
        ):
            cpu, seconds, left = self._compact(broker, f"compacted-{value_size}", size, value_size)
            label = f"compacting {size // _MB:,} MB of {value_size}-byte records, each key ten times"
            self.note(f"{label}: CPU s", broker, cpu)
            self.note(f"{label}: s", broker, seconds)
            self.note(f"{label}: MB left", broker, left / 1e6)
            meanwhile: list[raw_client.Latencies] = []
            load = threading.Thread(target=lambda found=meanwhile: found.append(self._synchronous(broker)))
            self._compact(broker, f"compacted-under-load-{value_size}", size, value_size, load)
            load.join()
            label = f"one record at a time while {value_size}-byte records are compacted, p99 ms"
            self.note(label, broker, meanwhile[0].p99)

    def _compact(
        self, broker: Broker, topic: str, size: int, value_size: int, load: threading.Thread | None = None
    ) -> tuple[float, float, int]:
        """Compact a new topic. Return CPU seconds, seconds, and bytes left. Start `load` when compaction begins."""
        waiting = {"min.compaction.lag.ms": str(86_400_000)}
        settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "segment.bytes": str(100 * _MB)}
        _create(broker, topic, 1, settings | waiting)
        _write_keyed(broker, topic, size, value_size)
        directory = next(broker.directory.rglob(f"{topic}-0"))
        idle = _idle_cpu(broker)
        cpu, begin = process.family_cpu_seconds(broker.pid), time.perf_counter()
        _alter(broker, topic, {"min.compaction.lag.ms": "0", "segment.ms": "500"})
        # The next record rolls the active segment, so that it is compacted too.
        _write_keyed(broker, topic, _MB, value_size)
        last = before = _log_bytes(directory)
        last_change = time.perf_counter()
        while time.perf_counter() - begin < _CLEANED_S:
            now = _log_bytes(directory)
            if load is not None and load.ident is None and (now < before or any(directory.glob("*.cleaned"))):
                load.start()
            if now != last:
                last, last_change = now, time.perf_counter()
            if last < before // 4 and time.perf_counter() - last_change > 5.0:
                break
            time.sleep(0.05)
        else:
            raise RuntimeError(f"{broker.name} did not compact {topic} within {_CLEANED_S:.0f} s")
        seconds = last_change - begin
        return process.family_cpu_seconds(broker.pid) - cpu - idle * (time.perf_counter() - begin), seconds, last


def _create(broker: Broker, topic: str, partitions: int, settings: dict[str, str] | None = None) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings or {})])[topic].result(_TIMEOUT_S)
    if settings is None:
        raw_client.wait_for_produce(broker.port, topic, partitions, _TIMEOUT_S)


def _alter(broker: Broker, topic: str, settings: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(_TIMEOUT_S)


def _write(broker: Broker, topic: str, partitions: int, size: int) -> int:
    """Append about `size` bytes in batches of 60 KB. Return the number of records per partition."""
    records = 60
    frame = frames.produce(topic, range(partitions), records=records, record_size=_VALUE_SIZE)
    requests = max(1, size // len(frame))
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        _ask_many(connection, (frame for _ in range(requests)))
    return requests * records


def _write_keyed(broker: Broker, topic: str, size: int, value_size: int) -> None:
    """Append about `size` bytes of records in random order, ten for each key."""
    per_batch = _KEYED_BATCH_BYTES // (value_size + 30)
    batches = max(1, size // _KEYED_BATCH_BYTES)
    keys = [number % (batches * per_batch // 10 or 1) for number in range(batches * per_batch)]
    random.Random(1).shuffle(keys)
    value = random.Random(2).randbytes(value_size)
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        _ask_many(
            connection,
            (_keyed_frame(topic, keys[at : at + per_batch], value) for at in range(0, len(keys), per_batch)),
        )


def _keyed_frame(topic: str, keys: list[int], value: bytes) -> bytes:
    content = bytearray()
    for delta, key in enumerate(keys):
        name = b"key-%d" % key
        head = b"\x00\x00" + frames.varint(delta) + frames.varint(len(name)) + name + frames.varint(len(value))
        content += frames.varint(len(head) + len(value) + 1) + head + value + b"\x00"
    return frames.produce_batch(topic, bytes(content), len(keys))


def _ask_many(connection: socket.socket, requests: Iterator[bytes]) -> None:
    """Send Produce requests, at most four of them unanswered. Raises RuntimeError if one is refused."""
    waiting = 0
    for request in requests:
        connection.sendall(request)
        waiting += 1
        if waiting == 4:
            _expect_written(connection)
            waiting -= 1
    for _ in range(waiting):
        _expect_written(connection)


def _expect_written(connection: socket.socket) -> None:
    errors = [code for code in frames.produce_errors(raw_client.receive_frame(connection)) if code]
    if errors:
        raise RuntimeError(f"the broker refused a Produce request with error code {errors[0]}")


def _fetch_at_random(broker: Broker, topic: str, records: int) -> tuple[float, float]:
    """Return a fetch's median latency and mean broker CPU time, in us. A first, untimed pass warms the same offsets."""
    offsets = [random.Random(records).randrange(records) for _ in range(_FETCHES)]
    with socket.create_connection(("127.0.0.1", broker.port)) as connection:
        for offset in offsets:
            _fetch(connection, topic, offset)
        cpu = broker.cpu_seconds()
        latencies = [_fetch(connection, topic, offset) for offset in offsets]
        cpu = broker.cpu_seconds() - cpu
    return median(latencies) * 1e6, cpu / _FETCHES * 1e6


def _fetch(connection: socket.socket, topic: str, offset: int) -> float:
    begin = time.perf_counter()
    connection.sendall(frames.fetch(topic, 0, offset, _FETCH_BYTES))
    if len(raw_client.receive_frame(connection)) < _FETCH_BYTES // 2:
        raise RuntimeError(f"a fetch of {topic} at offset {offset} returned less than half of {_FETCH_BYTES} bytes")
    return time.perf_counter() - begin


@contextmanager
def _readers(broker: Broker, topic: str, records: int) -> Iterator[None]:
    """Run readers that start at different offsets and repeatedly read the first `records` of the log."""
    # Processes, so that they do not share an interpreter with the measuring client.
    context = multiprocessing.get_context("spawn")
    starts = [number * records // _READERS for number in range(_READERS)]
    processes = [context.Process(target=_reader, args=(broker.port, topic, start, records)) for start in starts]
    for item in processes:
        item.start()
    try:
        yield
    finally:
        for item in processes:
            item.kill()
            item.join()


def _reader(port: int, topic: str, offset: int, records: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        due = time.perf_counter()
        while True:
            connection.sendall(frames.fetch(topic, 0, offset, _MB))
            raw_client.receive_frame(connection)
            offset = (offset + 900) % records
            # Do not catch up after a delay: that would be a burst.
            now = time.perf_counter()
            due = max(due + 1 / _READ_MB_S, now)
            time.sleep(due - now)


def _log_bytes(directory: Path) -> int:
    total = 0
    for path in directory.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def _idle_cpu(broker: Broker) -> float:
    before = process.family_cpu_seconds(broker.pid)
    time.sleep(_IDLE_S)
    return (process.family_cpu_seconds(broker.pid) - before) / _IDLE_S


def _drop_page_cache() -> None:
    """Drop the page cache, so that the next reads come from disk. Without the permission, print a warning."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        sys.stderr.write("Cannot drop the page cache without root: the figures for cold data show warm data.\n")
