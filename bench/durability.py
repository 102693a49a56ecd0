"""`python -m bench --durability`: the cost of writing all records to disk before they are acknowledged.

Measures producers to a topic with `flush.messages=1`: one and several ProducerPerformance, and clients that send one
record and wait for the reply. The figures depend on the disk.
"""

import selectors
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient, NewTopic

from bench import frames, raw_client
from bench.brokers import Broker
from bench.clients import KafkaTools
from bench.figures import Figures
from bench.topics import PARTITIONS

PRODUCERS: Final = (1, 4)
CLIENTS: Final = (1, 16, 64)
_ROUNDS: Final = 3
_SECONDS: Final = 5.0
_RECORDS: Final = 300_000
_WARM_UP: Final = 100_000
_TIMEOUT_S: Final = 30.0


class DurabilityFigures(Figures):
    def __init__(self, jars: Path, directory: Path, *, with_kafka: bool) -> None:
        super().__init__(jars, directory, with_kafka=with_kafka)
        self._tools = KafkaTools(jars)

    def measure(self) -> None:
        brokers = [make() for make in self._makers]
        try:
            for broker in brokers:
                broker.start()
                admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})
                topic = NewTopic("durable", PARTITIONS, 1, config={"flush.messages": "1"})
                admin.create_topics([topic])["durable"].result(_TIMEOUT_S)
                raw_client.wait_for_produce(broker.port, "durable", PARTITIONS, _TIMEOUT_S)
            for _ in range(_ROUNDS):
                for broker in brokers:
                    self._round(broker)
        finally:
            for broker in brokers:
                broker.remove()

    def _round(self, broker: Broker) -> None:
        for count in PRODUCERS:
            self.note(f"ProducerPerformance x {count}, 100-byte records per second", broker, self._java(broker, count))
        for count in CLIENTS:
            answered, p50, p99 = _one_at_a_time(broker.port, count)
            self.note(f"{count} clients, one record at a time: records per second", broker, answered)
            self.note(f"{count} clients, one record at a time: p50 ms", broker, p50)
            self.note(f"{count} clients, one record at a time: p99 ms", broker, p99)

    def _java(self, broker: Broker, count: int) -> float:
        def produce(_: int) -> float:
            return self._tools.produce(
                broker, "durable", records=_RECORDS // count, warm_up=_WARM_UP // count, properties=["acks=1"]
            )

        with ThreadPoolExecutor(count) as pool:
            return sum(pool.map(produce, range(count)))


def _one_at_a_time(port: int, clients: int) -> tuple[float, float, float]:
    """Return the records per second of all clients, and the 50th and 99th percentile of the latency in ms."""
    samples: list[float] = []
    with selectors.DefaultSelector() as selector:
        connections = []
        for number in range(clients):
            partition = number % PARTITIONS
            frame = frames.produce("durable", range(partition, partition + 1), records=1, record_size=100)
            connection = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connections.append(connection)
            state = [connection, frame, time.perf_counter()]
            selector.register(connection, selectors.EVENT_READ, state)
            connection.sendall(frame)
        end = time.perf_counter() + _SECONDS
        while (now := time.perf_counter()) < end:
            for key, _ in selector.select(1.0):
                connection, frame, sent = key.data
                if any(frames.produce_errors(raw_client.receive_frame(connection))):
                    raise RuntimeError("the broker refused a Produce request")
                now = time.perf_counter()
                samples.append(now - sent)
                key.data[2] = now
                connection.sendall(frame)
        for connection in connections:
            connection.close()
    samples.sort()
    return (
        len(samples) / _SECONDS,
        1000 * samples[len(samples) // 2],
        1000 * samples[len(samples) * 99 // 100],
    )
