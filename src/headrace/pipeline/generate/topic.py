"""Send a generated log to a topic, keyed by client."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.generate.log import Record

_POLL_EVERY: Final = 500
_TIMEOUT_S: Final = 30.0
"""Maximum time for a broker to acknowledge a record."""
_NAP_S: Final = 0.005

log = logging.getLogger(__name__)


def send_log(
    records: Iterable[Record],
    bootstrap: str,
    topic: str,
    *,
    rate: float | None,
    progress: Callable[[int], None],
) -> None:
    """Send the records to their partitions, and wait until brokers have acknowledged all of them.

    With a `rate` (records/s), no record is sent early; otherwise all are sent as fast as possible. `progress` is called
    with the number of acknowledged records. Raises PipelineError if a record is refused, or not acknowledged in 30 s.
    """
    _Sender(bootstrap, topic, progress).send(records, rate)


class _Sender:
    def __init__(self, bootstrap: str, topic: str, progress: Callable[[int], None]) -> None:
        self._topic = topic
        self._progress = progress
        self._acknowledged = 0
        self._failure: KafkaError | None = None
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": "lz4",
                "allow.auto.create.topics": False,
                "reconnect.backoff.max.ms": 1000,
                "message.timeout.ms": round(_TIMEOUT_S * 1000),
            },
            logger=log,
        )

    def send(self, records: Iterable[Record], rate: float | None) -> None:
        started = time.monotonic()
        for number, (partition, key, line) in enumerate(records):
            if rate is not None:
                self._wait_until(started + number / rate)
            self._queue(partition, key, line)
            if number % _POLL_EVERY == 0:
                self._poll(0)
        while len(self._producer):
            self._poll(0.1)

    def _wait_until(self, moment: float) -> None:
        while (rest := moment - time.monotonic()) > 0:
            self._poll(0)
            time.sleep(min(rest, _NAP_S))

    def _queue(self, partition: int, key: bytes, line: bytes) -> None:
        while True:
            try:
                self._producer.produce(self._topic, line, key, partition, on_delivery=self._delivered)
                return
            except BufferError:  # the generator is faster than the broker
                self._poll(0.1)
            except KafkaException as error:
                raise self._refused(error.args[0]) from error

    def _poll(self, timeout_s: float) -> None:
        """Process acknowledgements. Raises PipelineError for the first failure."""
        self._producer.poll(timeout_s)
        self._progress(self._acknowledged)
        if self._failure is not None:
            self._producer.purge()
            raise self._refused(self._failure)

    def _refused(self, error: KafkaError) -> PipelineError:
        before = f"{self._acknowledged:,} delivered before that"
        return PipelineError(f"cannot deliver a record to topic {self._topic}: {error.str()}; {before}")

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self._acknowledged += 1
        elif self._failure is None:
            self._failure = error
