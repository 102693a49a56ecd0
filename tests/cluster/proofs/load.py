"""Idempotent and transactional producers that record acknowledgements, and one with acks=1 whose records may be lost.

Records are numbered per producer and partition, so that a full read shows losses, duplicates and wrong order.
"""

import contextlib
import random
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from enum import Enum, auto
from functools import partial
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tests.support.waiting import wait_for

UNSENT: Final = -2
"""The offset of a record that was not acknowledged."""
_UNKNOWN: Final = -1001
"""The offset that librdkafka gives for a duplicate."""
_NO_TRANSACTION: Final = -1
_CALL_S: Final = 60.0
_PATIENCE_S: Final = 300.0


NOISE: Final = b"-"
"""The first byte of records with acks=1, which a killed leader may lose, so that its log has to be truncated."""


class Record(NamedTuple):
    """The content of a value."""

    producer: int
    partition: int
    number: int
    transaction: int

    def value(self) -> bytes:
        head = b"%d %d %d %d " % self
        return head + b"x" * (self.number * 37 % 800)


def parse(value: bytes) -> Record:
    """Return the content of a value. Raises AssertionError if it is damaged."""
    record = Record(*(int(field) for field in value.split(b" ")[:4]))
    assert record.value() == value, f"damaged value: {value[:60]!r}"
    return record


class Outcome(Enum):
    """The end of a transaction, as its producer knows it."""

    COMMITTED = auto()
    ABORTED = auto()
    UNKNOWN = auto()
    """The producer failed at the end: either all records are visible or none."""


class Written:
    """The records that one producer has sent. Offsets are from acknowledgements; negative ones are unknown."""

    def __init__(self, producer: int, partitions: int) -> None:
        self.producer = producer
        self.offsets = [array("q") for _ in range(partitions)]
        self.transactions = [array("q") for _ in range(partitions)]
        self.acknowledged = 0
        """The number of acknowledged records."""
        self.outcomes: list[Outcome] = []
        self.failures: list[str] = []
        self.fatal_errors: list[str] = []
        """Errors after which a transactional producer was replaced."""

    def add(self, partition: int, transaction: int) -> Record:
        """Number a new record."""
        number = len(self.offsets[partition])
        self.offsets[partition].append(UNSENT)
        self.transactions[partition].append(transaction)
        return Record(self.producer, partition, number, transaction)

    def acknowledge(self, record: Record, offset: int) -> None:
        self.offsets[record.partition][record.number] = offset
        self.acknowledged += 1


class Load:
    """Producers in threads, as a context manager, which ends when everything is acknowledged.

    Each partition has an idempotent producer; `transactional` more producers write to all partitions. `rate`: records
    per second and producer.
    """

    def __init__(
        self, bootstrap: str, topic: str, partitions: int, *, transactional: int, rate: float, seed: int
    ) -> None:
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._seed = seed
        self._ending = threading.Event()
        self.written = [Written(number, partitions) for number in range(partitions + transactional)]
        runs: list[Callable[[Written], None]] = [*[self._send] * partitions, *[self._transact] * transactional]
        self._threads = [
            threading.Thread(target=self._guarded, args=(run, written), name=f"producer-{written.producer}")
            for run, written in zip(runs, self.written, strict=True)
        ]
        self._threads.append(threading.Thread(target=self._make_noise, name="noise"))

    @property
    def acknowledged(self) -> int:
        return sum(written.acknowledged for written in self.written)

    @property
    def failures(self) -> list[str]:
        return [failure for written in self.written for failure in written.failures]

    @property
    def fatal_errors(self) -> list[str]:
        return [error for written in self.written for error in written.fatal_errors]

    @property
    def outcomes(self) -> Mapping[Outcome, int]:
        """The number of transactions by outcome."""
        ends = [outcome for written in self.written for outcome in written.outcomes]
        return {outcome: ends.count(outcome) for outcome in Outcome}

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(_PATIENCE_S + _CALL_S)

    def progress(self) -> None:
        """Wait until more records are acknowledged. Raises AssertionError after a failure."""
        before = self.acknowledged
        wait_for(lambda: self.failures or self.acknowledged > before + 200, "acknowledged records", timeout_s=180)
        self.check()

    def check(self) -> None:
        """Raise AssertionError if a record of a plain producer has failed, or a producer has ended."""
        assert not self.failures, "\n".join(self.failures[:10])

    # Threads

    def _guarded(self, run: Callable[[Written], None], written: Written) -> None:
        try:
            run(written)
        except (KafkaException, BufferError) as error:
            written.failures.append(f"producer {written.producer} ended: {error!r}")

    def _settings(self, **more: object) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 20,
            "message.timeout.ms": 0,
            # A stopped broker neither answers requests nor closes its connections.
            "socket.timeout.ms": 10_000,
            "log_level": 0,  # otherwise every lost connection is reported
            **more,
        }

    def _sent(self, written: Written, record: Record, error: KafkaError | None, message: Message) -> None:
        if error is None:
            offset = message.offset()
            written.acknowledge(record, _UNKNOWN if offset is None else offset)
        elif record.transaction == _NO_TRANSACTION:
            written.failures.append(f"producer {written.producer}: {error.str()}")

    def _produce(self, producer: Producer, written: Written, partition: int, transaction: int) -> None:
        record = written.add(partition, transaction)
        producer.produce(
            self._topic, record.value(), partition=partition, on_delivery=partial(self._sent, written, record)
        )

    def _send(self, written: Written) -> None:
        """Write to one partition.

        After an error in one partition librdkafka begins a new epoch for all of them, and writes what was not
        acknowledged again: with several partitions it duplicates records (its issue 4953).
        """
        partition = written.producer % self._partitions
        producer = Producer(self._settings())
        while not self._ending.is_set() and not written.failures:
            for _ in range(10):
                self._produce(producer, written, partition, _NO_TRANSACTION)
            producer.poll(0)
            while len(producer) > 5000:  # the partition may be unavailable for long
                producer.poll(0.1)
            self._ending.wait(10 / self._rate)
        left = producer.flush(_PATIENCE_S)
        if left:
            written.failures.append(f"producer {written.producer}: {left} records without an answer")

    def _make_noise(self) -> None:
        """Write records with acks=1. They may be lost."""
        producer = Producer({"bootstrap.servers": self._bootstrap, "acks": 1, "log_level": 0})
        number = 0
        while not self._ending.wait(1 / self._rate):
            number += 1
            with contextlib.suppress(BufferError):
                producer.produce(self._topic, NOISE + b"%d" % number, partition=number % self._partitions)
            producer.poll(0)
        producer.flush(_CALL_S)

    def _transact(self, written: Written) -> None:
        chance = random.Random(f"{self._seed} {written.producer}")
        producer = self._new_transactional(written)
        while not self._ending.is_set() and not written.failures:
            count = chance.randint(1, 40)
            transaction = len(written.outcomes)
            written.outcomes.append(Outcome.UNKNOWN)
            try:
                producer.begin_transaction()
                for _ in range(count):
                    self._produce(producer, written, chance.randrange(self._partitions), transaction)
                producer.poll(0)
                self._ending.wait(count / self._rate)
                commit = chance.random() < 0.8
                written.outcomes[transaction] = self._end(producer, commit=commit)
            except KafkaException as error:
                written.fatal_errors.append(error.args[0].str())
                producer = self._new_transactional(written)

    def _end(self, producer: Producer, *, commit: bool) -> Outcome:
        """End a transaction, and return its outcome. Raises KafkaException for fatal errors."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                if commit:
                    producer.commit_transaction(_CALL_S)
                    return Outcome.COMMITTED
                # If no partition was added yet, librdkafka treats a rejected abort as a fatal error.
                producer.flush(_CALL_S)
                producer.abort_transaction(_CALL_S)
                return Outcome.ABORTED
            except KafkaException as raised:
                error = raised.args[0]
                if error.txn_requires_abort():
                    commit = False
                elif not error.retriable() or time.monotonic() > deadline:
                    raise

    def _new_transactional(self, written: Written) -> Producer:
        producer = Producer(
            self._settings(
                **{"transactional.id": f"transactional-{written.producer}", "transaction.timeout.ms": 120_000}
            )
        )
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                producer.init_transactions(_CALL_S)
            except KafkaException as raised:
                if not raised.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return producer
