"""Lines of an access log into the topic, as a log shipper would send them."""

import logging
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from headrace.pipeline.demo.timestamps import time_of
from headrace.pipeline.errors import PipelineError

_APART_MS: Final = 5 * 60 * 1000
"""How far, in event time, a line may overtake another that goes to another partition: half of what queries wait."""
_FLUSH_S: Final = 30.0

log = logging.getLogger(__name__)


class Shipper:
    """Sends lines keyed by client address, so that one client's requests stay in order.

    Partitions move at different speeds, and a file's days pass in seconds: lines are held back until those much older
    are acknowledged, as they would be if they came at their own times.
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
        """Send one line, without its line end; raises `PipelineError` when the broker refused one."""
        time_ms = time_of(line)
        if time_ms is not None and abs(time_ms - self._flushed_ms) > _APART_MS:
            self.flush()
            self._flushed_ms = time_ms
        timestamp = time_ms or 0  # the client takes 0 as now
        address = line.split(b" ", 1)[0]
        while True:
            try:
                self._producer.produce(self._topic, line, address, timestamp=timestamp, on_delivery=self._delivered)
                break
            except BufferError:  # the broker is slower than the file is read
                self._producer.poll(0.1)
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until every line is acknowledged."""
        if self._producer.flush(_FLUSH_S):
            raise PipelineError(f"the broker has not acknowledged {self._topic}'s lines for {_FLUSH_S:g} s")
        self._check()

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        elif self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise PipelineError(f"the broker refused a line of {self._topic}: {self._failure.str()}")
