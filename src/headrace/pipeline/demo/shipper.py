"""Send the lines of an access log to the topic, as a log shipper does."""

import logging
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from headrace.pipeline.demo.timestamps import time_of
from headrace.pipeline.errors import PipelineError

_APART_MS: Final = 5 * 60 * 1000
"""How much newer, in event time, a line may be than one still unacknowledged: half of the queries' watermark delay."""
_FLUSH_S: Final = 30.0

log = logging.getLogger(__name__)


class Shipper:
    """Sends lines keyed by client address, so that the requests of a client stay in order.

    A file's days pass in seconds, and partitions advance at different speeds. Lines wait until much older ones are
    acknowledged, as if they came at their own times.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4"},
            logger=log,
        )
        self._flushed_ms = 0
        self._failure: KafkaError | None = None
        self.acknowledged = 0

    def ship(self, line: bytes) -> None:
        """Send a line, without its line end. Raises `PipelineError` if the broker refused one."""
        time_ms = time_of(line)
        if time_ms is not None and abs(time_ms - self._flushed_ms) > _APART_MS:
            self.flush()
            self._flushed_ms = time_ms
        timestamp = time_ms or 0  # 0 means now
        address = line.split(b" ", 1)[0]
        while True:
            try:
                self._producer.produce(self._topic, line, address, timestamp=timestamp, on_delivery=self._delivered)
                break
            except BufferError:  # reading is faster than the broker
                self._producer.poll(0.1)
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until all lines are acknowledged."""
        if self._producer.flush(_FLUSH_S):
            raise PipelineError(f"the broker has not acknowledged records of {self._topic} for {_FLUSH_S:g} s")
        self._check()

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        elif self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise PipelineError(f"cannot deliver a record to topic {self._topic}: {self._failure.str()}")
