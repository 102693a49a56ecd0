"""Producers that can be destroyed after an error, and librdkafka calls that may never return."""

import logging
import threading
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException, Producer

log = logging.getLogger(__name__)


class OwnedProducer:
    """The only reference to a producer, so that `destroy` takes effect at once.

    The traceback of an exception keeps the local variables of its functions alive. So functions that may fail keep only
    this object in a local variable, never its `producer`.
    """

    def __init__(self, settings: Mapping[str, object]) -> None:
        self._producer: Producer | None = Producer(dict(settings), logger=log)

    @property
    def producer(self) -> Producer:
        """The producer. Raises RuntimeError if it was destroyed."""
        if self._producer is None:
            raise RuntimeError("the producer was destroyed")
        return self._producer

    def destroy(self) -> None:
        """Discard the records that have not been delivered, and end the producer without waiting for brokers.

        A producer that stays alive sends its records, and asks for its producer id, until it succeeds, however late.
        `Producer.close` is not used, because it waits for the end of a transaction, without a limit. A producer with a
        call that has not returned (`bounded`) is destroyed when the call returns.
        """
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


def bounded(call: Callable[[], object], longest_s: float) -> None:
    """Make a librdkafka call that may ignore its timeout.

    Raises its error, or KafkaException if it takes longer than `longest_s`.

    `send_offsets_to_transaction` may wait forever if its connections are lost while it looks up the group coordinator.
    Its thread and producer are then abandoned: the next producer with the same transactional id fences that producer.
    """
    outcome: list[Exception | None] = []

    def run() -> None:
        try:
            call()
            outcome.append(None)
        except Exception as error:  # noqa: BLE001  # raised below, in the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=run, name="librdkafka", daemon=True)
    thread.start()
    thread.join(longest_s)
    if not outcome:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"librdkafka did not return within {longest_s:g} s"))
    if outcome[0] is not None:
        raise outcome[0]
