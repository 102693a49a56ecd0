"""Send the lines of an access log to the topic, as a log shipper does."""

import logging
import time
import zlib
from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from headrace.pipeline.demo.shipping.arrivals import Arrivals
from headrace.pipeline.demo.shipping.log_line import client_of, time_of
from headrace.pipeline.errors import PipelineError

_APART_MS: Final = 5 * 60 * 1000
"""Maximum difference in event time from an unacknowledged line: half of the lateness that the jobs allow."""
_FLUSH_S: Final = 30.0

log = logging.getLogger(__name__)


class Shipper:
    """Sends lines keyed by client address, so that the requests of a client stay in order.

    Lines that span days are sent within seconds, and partitions advance at different speeds. To keep one partition from
    getting far ahead of the others in event time, a line waits until much older lines are acknowledged.
    """

    def __init__(self, bootstrap: str, topic: str, ends: Mapping[int, int]) -> None:
        """`ends` are the end offsets of all partitions: the numbers of lines that an earlier shipper has sent."""
        self._topic = topic
        self._partitions = len(ends)
        self._present = dict(ends)
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "compression.type": "lz4"},
            logger=log,
        )
        self._flushed_ms = 0
        self._failure: KafkaError | None = None
        self.acknowledged = sum(ends.values())
        self.arrivals = Arrivals()

    def is_present(self, client: bytes) -> bool:
        """Return True if the next line of this client is in the topic already. Call it once for each line, in order.

        An idempotent producer leaves no gaps: each partition has the first lines of its clients.
        """
        partition = self._partition(client)
        if not self._present[partition]:
            return False
        self._present[partition] -= 1
        return True

    def ship(self, line: bytes) -> None:
        """Send a line, without its line ending. Raises `PipelineError` if a broker has refused a line."""
        time_ms = time_of(line)
        if time_ms is not None and abs(time_ms - self._flushed_ms) > _APART_MS:
            self.flush()
            self._flushed_ms = time_ms
        client = client_of(line)
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    line,
                    client,
                    partition=self._partition(client),
                    timestamp=time_ms or 0,  # 0 means now
                    on_delivery=self._delivered,
                )
                break
            except BufferError:  # reading is faster than the broker
                self._producer.poll(0.1)
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        """Wait until all lines are acknowledged. Raises `PipelineError` after 30 s, or if a broker refused a line."""
        if self._producer.flush(_FLUSH_S):
            raise PipelineError(
                f"lines for topic {self._topic} were not acknowledged in {_FLUSH_S:g} s: see the broker's log"
            )
        self._check()

    def _partition(self, client: bytes) -> int:
        # Like librdkafka's default partitioner, except that it would place empty keys at random.
        return zlib.crc32(client) % self._partitions

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged += 1
            self.arrivals.arrived(message.partition() or 0, message.offset() or 0, time.monotonic())
        elif self._failure is None:
            self._failure = error

    def _check(self) -> None:
        if self._failure is not None:
            raise PipelineError(f"cannot deliver a record to topic {self._topic}: {self._failure.str()}")
