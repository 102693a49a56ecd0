"""A client in its own process, which can be killed and paused, and records its history.

It ends with status 0 on SIGTERM, and with `RESTART` after its producer or consumer was fenced or has met a fatal
error. Its parent then starts the next incarnation, unless one is running.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NoReturn

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

RESTART: Final = 3
SOURCE: Final = "in"
COPY: Final = "out"
GROUP: Final = "copiers"
PARTITIONS: Final = 3
TRANSACTION_TIMEOUT_MS: Final = 10_000
_PATIENCE_S: Final = 60.0
_CLIENT: Final = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 300,
    "socket.timeout.ms": 4000,
    "log_level": 0,
}

_stop_asked = False


class Recorder:
    """Writes every event immediately, so that a killed client leaves a complete history."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def __call__(self, event: str, **fields: object) -> None:
        line = json.dumps({"event": event, "time": time.monotonic_ns(), **fields})
        os.write(self._file, line.encode() + b"\n")

    def touch(self) -> None:
        """Show that the process is not stuck if it has no events to record."""
        os.utime(self._file)


class Transactions:
    """A transactional producer that records its actions and ends the process after fatal errors."""

    def __init__(self, bootstrap: str, name: str, incarnation: int, record: Recorder) -> None:
        self._name = f"{name}.{incarnation}"
        self._record = record
        self._number = 0
        config = {"transactional.id": name, "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "linger.ms": 2}
        self.producer = Producer({"bootstrap.servers": bootstrap, **_CLIENT, **config})
        deadline = time.monotonic() + _PATIENCE_S
        record("starting")
        while True:
            try:
                self.producer.init_transactions(5)
                break
            except KafkaException as failure:
                if not _error(failure).retriable() or time.monotonic() > deadline:
                    give_up(failure)
        record("started")

    def begin(self, records: Sequence[tuple[str, int, str]], **recorded: object) -> None:
        """Send `(topic, partition, text)` records in a new transaction; their values begin with unique names."""
        named = [
            (topic, partition, f"{self._name}.{self._number}.{place} {text}")
            for place, (topic, partition, text) in enumerate(records)
        ]
        self._record("transaction", number=self._number, records=named, **recorded)
        self._number += 1
        try:
            self.producer.begin_transaction()
            for topic, partition, value in named:
                self.producer.produce(topic, value.encode(), partition=partition)
        except (KafkaException, BufferError) as failure:
            give_up(failure)

    def flush(self, timeout_s: float) -> None:
        try:
            self.producer.flush(timeout_s)
        except KafkaException as failure:
            give_up(failure)

    def commit(self) -> bool:
        """Return False if the transaction was aborted."""
        self._record("commit")
        return self._end(self.producer.commit_transaction, "committed")

    def abort(self) -> None:
        self._end(self.producer.abort_transaction, "aborted")

    def _end(self, end: Callable[[float], None], outcome: str) -> bool:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                end(5)
                self._record(outcome)
                return outcome == "committed"
            except KafkaException as failure:
                error = _error(failure)
                if error.txn_requires_abort() and outcome == "committed":
                    self.abort()
                    return False
                if not error.retriable() or time.monotonic() > deadline:
                    give_up(failure)


def writer(transactions: Transactions, chance: random.Random) -> None:
    """Write transactions of one to six records over all partitions; abort one of six."""
    while not _stop_asked:
        transactions.begin([(SOURCE, chance.randrange(PARTITIONS), "") for _ in range(chance.randint(1, 6))])
        if chance.random() < 0.3:
            transactions.flush(chance.random())
        if chance.random() < 5 / 6:
            transactions.commit()
        else:
            transactions.abort()
        time.sleep(chance.uniform(0, 0.05))


def copier(transactions: Transactions, chance: random.Random, bootstrap: str, record: Recorder) -> None:
    """Copy committed records to the partitions of the same number, and commit their offsets in the transaction."""
    batch: list[Message] = []

    def forget(*_: object) -> None:
        batch.clear()

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            **_CLIENT,
            "group.id": GROUP,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # Rebalances revoke all partitions, which resume at the committed offsets.
            "partition.assignment.strategy": "range",
            "session.timeout.ms": 4000,
            "max.poll.interval.ms": 15_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe([SOURCE], on_assign=forget, on_revoke=forget, on_lost=forget)
    while not _stop_asked:
        batch.clear()
        record.touch()
        for _ in range(20):
            message = consumer.poll(0.1)
            if message is None:
                break
            error = message.error()
            if error is None:
                batch.append(message)
            elif error.fatal():
                give_up(error)
        if batch:
            _copy(transactions, consumer, batch, abort=chance.random() < 0.15)
    consumer.close()


def _copy(transactions: Transactions, consumer: Consumer, batch: Sequence[Message], *, abort: bool) -> None:
    sources: list[tuple[int, int]] = []
    copies: list[tuple[str, int, str]] = []
    for message in batch:
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        sources.append((partition, offset))
        copies.append((COPY, partition, value.decode()))
    transactions.begin(copies, sources=sources)
    ends = {partition: offset + 1 for partition, offset in sources}  # the last one of a partition wins
    positions = [TopicPartition(SOURCE, partition, end) for partition, end in ends.items()]
    try:
        transactions.producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 20)
    except KafkaException as failure:
        if not (_error(failure).txn_requires_abort() or _error(failure).retriable()):
            give_up(failure)
        abort = True
    if abort:
        transactions.abort()
    if abort or not transactions.commit():
        _rewind(consumer)


def _rewind(consumer: Consumer) -> None:
    """Seek to the committed offsets."""
    try:
        for position in consumer.committed(consumer.assignment(), timeout=20):
            if position.error is not None:
                give_up(position.error)
            consumer.seek(TopicPartition(SOURCE, position.partition, max(position.offset, 0)))
    except KafkaException as failure:
        give_up(failure)


def reader(record: Recorder, bootstrap: str) -> None:
    """Read both topics from their beginnings."""
    config = {"group.id": "not-used", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **_CLIENT, **config, "fetch.wait.max.ms": 50})
    topics = (SOURCE, COPY)
    consumer.assign(
        [TopicPartition(topic, number, OFFSET_BEGINNING) for topic in topics for number in range(PARTITIONS)]
    )
    while not _stop_asked:
        records = []
        record.touch()
        for message in consumer.consume(500, timeout=0.1):
            value, error = message.value(), message.error()
            if error is None and value is not None:
                records.append((message.topic(), message.partition(), message.offset(), value.decode()))
        if records:
            record("poll", session=0, records=records)


def give_up(why: object) -> NoReturn:
    print(why, file=sys.stderr, flush=True)
    os._exit(RESTART)


def _error(failure: KafkaException) -> KafkaError:
    error = failure.args[0]
    assert isinstance(error, KafkaError)
    return error


def main(kind: str, name: str, incarnation: str, bootstrap: str, directory: str, seed: str) -> None:
    def stop(*_: object) -> None:
        global _stop_asked  # noqa: PLW0603  (the process is the object)
        _stop_asked = True

    signal.signal(signal.SIGTERM, stop)
    record = Recorder(Path(directory) / f"{name}.{incarnation}.jsonl")
    if kind == "reader":
        reader(record, bootstrap)
        return
    chance = random.Random(f"{seed} {name} {incarnation}")
    transactions = Transactions(bootstrap, name, int(incarnation), record)
    if kind == "writer":
        writer(transactions, chance)
    else:
        copier(transactions, chance, bootstrap, record)


if __name__ == "__main__":
    main(*sys.argv[1:])
