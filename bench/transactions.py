"""`python -m bench --transactions`: the cost of transactions, compared with Apache Kafka.

librdkafka is the client of both brokers, which take turns; the first round does not count. Commit latency is the time
that `commit_transaction` takes after all records are acknowledged. CPU is the broker's time per transaction.
"""

import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench import raw_client
from bench.brokers import Broker
from bench.figures import Figures, Named
from headrace.errors import ErrorCode
from headrace.wire.apis import ApiKey, request_encoder, response_reader, schema
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch

PRODUCERS: Final = 20
RATE: Final = 100
OPEN: Final = 1000
_PARTITIONS: Final = 6
_VALUE: Final = b"x" * 100
_LOOP_BATCH: Final = 100
_LOOP_RECORDS: Final = 5_000
_READ_RECORDS: Final = 1_000_000
_TIMEOUT_S: Final = 60.0
_RETRIED: Final = {
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
}
"""Errors after which a request is repeated: the coordinator is not ready."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Number of rounds, and seconds per load."""

    rounds: int
    seconds: float


FULL: Final = Scale(3, 5.0)
QUICK: Final = Scale(1, 3.0)


@dataclass(slots=True)
class _Load:
    """The commits of several producers: seconds in total, and a latency in ms of each commit."""

    seconds: float = 0.0
    commits: list[float] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)
    """From the start of a transaction to the end of its commit."""


class TransactionFigures(Figures):
    def __init__(self, scale: Scale, jars: Path, directory: Path, *, with_kafka: bool) -> None:
        super().__init__(jars, directory, with_kafka=with_kafka)
        self._scale = scale
        self._is_warm = False

    def measure(self) -> None:
        brokers = [make() for make in self._makers]
        try:
            for broker in brokers:
                broker.start()
                for topic in ("many", "in", "out", "plain", "held"):
                    _create(broker, topic)
            for number in range(self._scale.rounds + 1):
                self._is_warm = number > 0
                for broker in brokers:
                    self._committing(broker, 1, 1000)
                    self._committing(broker, PRODUCERS, 10)
                    self._at_a_rate(broker)
                    self._loop(broker, number)
            for broker in brokers:
                self._reading(broker)
        finally:
            for broker in brokers:
                broker.remove()

    def note(self, row: str, broker: Named, figure: float) -> None:
        if self._is_warm:
            super().note(row, broker, figure)

    def _committing(self, broker: Broker, producers: int, records: int) -> None:
        cpu = broker.cpu_seconds()
        load = _commit_for(broker, producers, self._scale.seconds, records=records)
        cpu = broker.cpu_seconds() - cpu
        noun = "producer" if producers == 1 else "producers"
        label = f"{producers} {noun}, {records} records per transaction"
        count = len(load.commits)
        self.note(f"{label}: transactions per second", broker, count / load.seconds)
        self.note(f"{label}: commit p50 ms", broker, _percentile(load.commits, 0.5))
        self.note(f"{label}: commit p99 ms", broker, _percentile(load.commits, 0.99))
        self.note(f"{label}: begin to committed p50 ms", broker, _percentile(load.totals, 0.5))
        self.note(f"{label}: begin to committed p99 ms", broker, _percentile(load.totals, 0.99))
        self.note(f"{label}: broker CPU ms per transaction", broker, cpu * 1000 / count)

    def _at_a_rate(self, broker: Broker) -> None:
        """Measure latency at a low rate: at full speed, it is mostly queueing."""
        load = _commit_for(broker, PRODUCERS, self._scale.seconds, records=10, pause_s=PRODUCERS / RATE)
        label = f"{PRODUCERS} producers, {RATE} transactions per second in total"
        self.note(f"{label}: commit p50 ms", broker, _percentile(load.commits, 0.5))
        self.note(f"{label}: commit p99 ms", broker, _percentile(load.commits, 0.99))
        self.note(f"{label}: begin to committed p50 ms", broker, _percentile(load.totals, 0.5))
        self.note(f"{label}: begin to committed p99 ms", broker, _percentile(load.totals, 0.99))

    def _loop(self, broker: Broker, number: int) -> None:
        """Repeatedly consume a hundred records, produce as many, and commit them together with the offsets."""
        _fill(broker, "in", _LOOP_RECORDS, partitions=1)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": f"loop-{number}",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        producer = _producer(broker, "loop")
        end = consumer.get_watermark_offsets(TopicPartition("in", 0), timeout=_TIMEOUT_S)[1]
        consumer.assign([TopicPartition("in", 0, end - _LOOP_RECORDS)])
        done = 0
        cpu, begin = broker.cpu_seconds(), time.perf_counter()
        while done < _LOOP_RECORDS:
            records = consumer.consume(_LOOP_BATCH, timeout=_TIMEOUT_S)
            if not records:
                raise RuntimeError(f"{broker.name} returned only {done:,} of {_LOOP_RECORDS:,} records")
            producer.begin_transaction()
            for record in records:
                producer.produce("out", record.value(), partition=0)
            producer.send_offsets_to_transaction(
                consumer.position([TopicPartition("in", 0)]), consumer.consumer_group_metadata(), _TIMEOUT_S
            )
            producer.commit_transaction(_TIMEOUT_S)
            done += len(records)
        seconds, cpu = time.perf_counter() - begin, broker.cpu_seconds() - cpu
        consumer.close()
        label = f"consume, produce, commit {_LOOP_BATCH} at a time"
        self.note(f"{label}: records per second", broker, done / seconds)
        self.note(f"{label}: broker CPU ms per 1,000 records", broker, cpu * 1e6 / done)

    def _reading(self, broker: Broker) -> None:
        """Measure readers of a topic without transactions, with and without open transactions elsewhere."""
        _fill(broker, "plain", _READ_RECORDS, partitions=_PARTITIONS)
        _read_all(broker)
        rates: list[float] = [_read_all(broker) for _ in range(3)]
        with socket.create_connection(("127.0.0.1", broker.port), timeout=_TIMEOUT_S) as connection:
            for number in range(OPEN):
                _leave_open(connection, number)
            rates_with_open = [_read_all(broker) for _ in range(3)]
        label = "read_committed from a topic without transactions: records per second"
        for rate in rates:
            self.note(label, broker, rate)
        for rate in rates_with_open:
            self.note(f"  while another topic has {OPEN:,} open transactions", broker, rate)


def _create(broker: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
    admin.create_topics([NewTopic(topic, _PARTITIONS, 1)])[topic].result(_TIMEOUT_S)
    raw_client.wait_for_produce(broker.port, topic, _PARTITIONS, _TIMEOUT_S)


def _producer(broker: Broker, name: str) -> Producer:
    settings = {"bootstrap.servers": broker.address, "transactional.id": name, "linger.ms": 0, "log_level": 0}
    producer = Producer(settings)
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            producer.init_transactions(_TIMEOUT_S)
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise RuntimeError(f"{broker.name} did not initialize transactional id {name}: {error}") from error
        else:
            return producer


def _commit_for(broker: Broker, producers: int, seconds: float, *, records: int, pause_s: float = 0.0) -> _Load:
    """Let each producer commit one transaction after another; with `pause_s`, it begins at most one per pause."""
    clients = [_producer(broker, f"{producers}-{number}") for number in range(producers)]
    load = _Load()
    begin = time.perf_counter()

    def commit(number: int) -> None:
        producer = clients[number]
        turn = begin + pause_s * number / producers
        while (now := time.perf_counter()) < begin + seconds:
            time.sleep(max(turn - now, 0) if pause_s else 0)
            turn += pause_s
            begun = time.perf_counter()
            producer.begin_transaction()
            for place in range(records):
                producer.produce("many", _VALUE, partition=place % _PARTITIONS)
            producer.flush(_TIMEOUT_S)
            sent = time.perf_counter()
            producer.commit_transaction(_TIMEOUT_S)
            done = time.perf_counter()
            load.commits.append((done - sent) * 1000)
            load.totals.append((done - begun) * 1000)

    with ThreadPoolExecutor(producers) as pool:
        for _ in pool.map(commit, range(producers)):
            pass
    load.seconds = time.perf_counter() - begin
    return load


def _fill(broker: Broker, topic: str, records: int, *, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "log_level": 0})
    for number in range(records):
        while True:
            try:
                producer.produce(topic, _VALUE, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(_TIMEOUT_S):
        raise RuntimeError(f"{broker.name} did not acknowledge all of {records:,} records in {topic}")


def _read_all(broker: Broker) -> float:
    """Read all of the topic `plain` with one consumer. Return records per second after its first batch."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            # Otherwise it stops fetching for a second whenever 100,000 records wait for the program.
            "queued.min.messages": 10_000_000,
            "fetch.queue.backoff.ms": 1,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("plain", number, 0) for number in range(_PARTITIONS)])
    done, begin = 0, 0.0
    first = 0
    while done < _READ_RECORDS:
        records = consumer.consume(10_000, timeout=_TIMEOUT_S)
        if not records:
            raise RuntimeError(f"{broker.name} returned only {done:,} of {_READ_RECORDS:,} records")
        done += len(records)
        if not begin:
            first, begin = done, time.perf_counter()
    seconds = time.perf_counter() - begin
    consumer.close()
    return (done - first) / seconds


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def _leave_open(connection: socket.socket, number: int) -> None:
    """Begin a transaction of a new producer, write a record in it, and leave it open."""
    name = f"open-{number}"
    partition = number % _PARTITIONS
    begun = _ask_until_taken(
        connection,
        ApiKey.INIT_PRODUCER_ID,
        4,
        {"transactional_id": name, "transaction_timeout": 600_000, "producer_id": -1, "producer_epoch": -1},
        lambda answer: answer.error_code,
    )
    _ask_until_taken(
        connection,
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {
            "v3_and_below_transactional_id": name,
            "v3_and_below_producer_id": begun.producer_id,
            "v3_and_below_producer_epoch": begun.producer_epoch,
            "v3_and_below_topics": [{"name": "held", "partitions": [partition]}],
        },
        lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
    )
    batch = build_batch(
        [RecordData(None, _VALUE, time.time_ns() // 1_000_000)],
        producer_id=begun.producer_id,
        producer_epoch=begun.producer_epoch,
        base_sequence=0,
        attributes=TRANSACTIONAL_FLAG,
    )
    data = [{"name": "held", "partition_data": [{"index": partition, "records": batch}]}]
    _ask_until_taken(
        connection,
        ApiKey.PRODUCE,
        8,
        {"transactional_id": name, "acks": -1, "timeout": 30_000, "topic_data": data},
        lambda answer: answer.responses[0].partition_responses[0].error_code,
    )


def _ask_until_taken(
    connection: socket.socket,
    key: ApiKey,
    version: int,
    message: dict[str, Any],
    error_of: Callable[[Any], ErrorCode],
) -> Any:
    """Repeat a request until the coordinator is ready, and return the reply. Raises RuntimeError for other errors."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        answer = _ask(connection, key, version, message)
        error = error_of(answer)
        if error is ErrorCode.none:
            return answer
        if error not in _RETRIED or time.monotonic() > deadline:
            raise RuntimeError(f"the broker refused {key.name} with {error.name}")
        time.sleep(0.02)


def _ask(connection: socket.socket, key: ApiKey, version: int, message: dict[str, Any]) -> Any:
    body = bytearray(struct.pack(">hhih", key, version, 0, -1))
    if schema(key, version).has_flexible_request_header:
        body.append(0)
    request_encoder(key, version)(body, message)
    connection.sendall(struct.pack(">i", len(body)) + body)
    answer = raw_client.receive_frame(connection)
    start = 5 if schema(key, version).has_flexible_response_header else 4
    return response_reader(key, version)(answer, start)[0]
