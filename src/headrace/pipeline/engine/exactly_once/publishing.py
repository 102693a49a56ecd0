"""Publish the records of a batch exactly once.

With transactions, a transaction contains the records and the proof of the batch: source offsets committed for the group
`headrace-JOB`, with the metadata `{"batch": n, "query": id}`. After a crash, the committed metadata shows which batch
was published last. `init_transactions` fences an older driver with the same transactional id, and aborts its open
transaction. Consumers with `read_committed` read all of a batch or nothing.

Without transactions, the ledger is needed: a repeated batch searches the output topics from the offsets before its
first attempt, and publishes only the missing records.
"""

import hashlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from headrace.pipeline.engine.exactly_once.ledger import Offsets
from headrace.pipeline.engine.exactly_once.producers import OwnedProducer, bounded
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.client_settings import Cluster

GROUP_PREFIX: Final = "headrace-"
_TIMEOUT_S: Final = 30.0
_LONGEST_S: Final = 40.0
"""Time limit for a call that may ignore `_TIMEOUT_S`."""
_ABORT_S: Final = 5.0
_TRANSACTION_TIMEOUT_MS: Final = 300_000
"""Longer than publishing takes, and below the broker's default limit of 15 minutes."""
_FENCED: Final = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)

log = logging.getLogger(__name__)


class FencedError(PipelineError):
    """Another driver runs the job. This driver must stop the job and not restart it."""

    def __init__(self, job: str, then: str = "Run each job in only one driver") -> None:
        super().__init__(f"another driver has started job {job}, so this one stops it. {then}")


@dataclass(frozen=True, slots=True)
class Record:
    """A record to publish."""

    topic: str
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A batch to publish; `query` is the id of the Spark query, from its checkpoint.

    `positions` are the next offsets to read after the batch. At least one is required, because its metadata is `proof`.
    `output_ends` are the end offsets of the output topics before the first attempt.
    """

    number: int
    query: str
    positions: Offsets
    output_ends: Offsets

    @property
    def proof(self) -> str:
        return json.dumps({"batch": self.number, "query": self.query})


class Publisher(Protocol):
    """Publishes the batches of one job, in order."""

    def open(self, query: str) -> None: ...

    def is_published(self, number: int) -> bool: ...

    def publish(self, batch: Batch, records: Iterable[Record], count: int) -> int: ...

    def close(self) -> None: ...


def _pass(_: str) -> None:
    """Do nothing at a kill point."""


class TransactionalPublisher:
    """Publishes each batch in a transaction. Raises FencedError if another driver has started the job since."""

    def __init__(
        self,
        cluster: Cluster,
        job: str,
        version: int,
        *,
        prefix: str = "",
        reached: Callable[[str], None] = _pass,
        fenced: Callable[[], Exception] | None = None,
    ) -> None:
        """`prefix` precedes the group id and the transactional id; `reached` is called at the kill points.

        `fenced` returns the error to raise if the producer was fenced; by default, it is FencedError.
        """
        self._job = job
        self._group = prefix + GROUP_PREFIX + job
        self._cluster = cluster
        self._id = f"{prefix}{GROUP_PREFIX}{job}-{version}"
        self._reached = reached
        self._last = -1
        self._fenced = fenced or (lambda: FencedError(job))
        self._in_transaction = False
        self._owned: OwnedProducer | None = None

    def open(self, query: str) -> None:
        """Fence earlier drivers, and read the last published batch of the query. Raises KafkaException.

        After an error, the producer is destroyed. Otherwise librdkafka would continue to ask for a producer id, and
        could get it after the next attempt has got its own, whose producer would then be fenced.
        """
        settings: dict[str, Any] = {
            # like Java's default, so that records with the same key from any client are in the same partition
            "partitioner": "murmur2_random",
            "linger.ms": 5,
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            **self._cluster.confluent("producer"),
            "transactional.id": self._id,
        }
        owned = OwnedProducer(settings)
        try:
            bounded(lambda: owned.producer.init_transactions(_TIMEOUT_S), _LONGEST_S)
            self._last = last_published(self._cluster, self._group, query)
            # Only the name is needed: the group has no members, and the transactional id fences older drivers.
            consumer = Consumer({**self._cluster.confluent("consumer"), "group.id": self._group}, logger=log)
            try:
                self._metadata = consumer.consumer_group_metadata()
            finally:
                consumer.close()
        except BaseException:
            owned.destroy()
            raise
        self._owned = owned

    def is_published(self, number: int) -> bool:
        return number <= self._last

    def publish(self, batch: Batch, records: Iterable[Record], count: int) -> int:
        """Publish `count` records in a transaction with the proof of the batch, unless they are published already.

        Returns the number of published records. Raises the error for fenced producers, or KafkaException: then the
        transaction stays open until `close` or the next `open` of the job aborts it.
        """
        owned = self._owned
        if owned is None:
            raise RuntimeError("not open")
        if self.is_published(batch.number):
            log.info("%s: batch %d is already published", self._job, batch.number)
            return 0
        try:
            owned.producer.begin_transaction()
            self._in_transaction = True
            published = _send(owned, records, _mark(self._job, batch), count, self._reached)
            places, metadata = _places(batch), self._metadata
            bounded(lambda: owned.producer.send_offsets_to_transaction(places, metadata, _TIMEOUT_S), _LONGEST_S)
            self._reached("before-commit")
            self._commit(owned)
        except KafkaException as error:
            if error.args[0].code() in _FENCED:
                self._in_transaction = False
                raise self._fenced() from error
            raise
        self._in_transaction = False
        self._last = batch.number
        return published

    @staticmethod
    def _commit(owned: OwnedProducer) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            try:
                bounded(lambda: owned.producer.commit_transaction(_TIMEOUT_S), _LONGEST_S)
                return
            except KafkaException as error:
                # After a timeout, the outcome is unknown. Repeating the call continues the commit.
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise

    def close(self) -> None:
        """Abort an open transaction, because read_committed consumers would wait for its end."""
        owned, self._owned = self._owned, None
        if owned is None:
            return
        if self._in_transaction:
            self._in_transaction = False
            try:
                bounded(lambda: owned.producer.abort_transaction(_ABORT_S), 2 * _ABORT_S)
            except (KafkaException, RuntimeError) as error:  # RuntimeError: no thread can be started
                log.warning(
                    "%s: cannot abort the open transaction (%s); read_committed consumers wait until it times out",
                    self._job,
                    error,
                )
        owned.destroy()


class LedgerPublisher:
    """Publishes to clusters without transactions. It cannot fence an older driver."""

    def __init__(self, cluster: Cluster, job: str, *, prefix: str = "", reached: Callable[[str], None] = _pass) -> None:
        self._job = job
        self._group = prefix + GROUP_PREFIX + job
        self._cluster = cluster
        self._reached = reached
        self._last = -1
        self._may_be_repeated = True
        self._owned: OwnedProducer | None = None

    def open(self, query: str) -> None:
        """Read the last published batch of the query. Raises KafkaException."""
        settings = {"partitioner": "murmur2_random", "linger.ms": 5, "enable.idempotence": True}
        self._last = last_published(self._cluster, self._group, query)
        self._owned = OwnedProducer({**settings, **self._cluster.confluent("producer")})
        self._may_be_repeated = True

    def is_published(self, number: int) -> bool:
        return number <= self._last

    def publish(self, batch: Batch, records: Iterable[Record], count: int) -> int:
        """Publish the records of the batch that are not in its topics yet, then the proof. Return their number.

        For a repeated batch, keeps a 16-byte digest of each record found in the topics. Raises KafkaException.
        """
        owned = self._owned
        if owned is None:
            raise RuntimeError("not open")
        if self.is_published(batch.number):
            return 0
        mark = _mark(self._job, batch)
        # Only the first batch after a start can have been interrupted.
        found = self._found(batch) if self._may_be_repeated else Counter()
        failures: list[KafkaError] = []
        published = _send(owned, _missing(records, found), mark, count, self._reached, failures)
        if owned.producer.flush(_TIMEOUT_S) or failures:
            raise KafkaException(failures[0] if failures else KafkaError(KafkaError._TIMED_OUT))
        self._reached("before-commit")
        self._commit(batch)
        self._last, self._may_be_repeated = batch.number, False
        return published

    def _found(self, batch: Batch) -> "Counter[bytes]":
        """Count the records of this batch in the output topics by identity, starting at the ledger's offsets."""
        consumer = Consumer(
            {
                **self._cluster.confluent("consumer"),
                "group.id": self._group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
            },
            logger=log,
        )
        mark = _mark(self._job, batch)
        found: Counter[bytes] = Counter()
        try:
            places = [TopicPartition(t, p, end) for t, ends in batch.output_ends.items() for p, end in ends.items()]
            consumer.assign(places)
            reading = {(place.topic, place.partition) for place in places}
            while reading:
                message = consumer.poll(_TIMEOUT_S)
                if message is None:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
                error = message.error()
                if error is None:
                    if all(pair in (message.headers() or []) for pair in mark):
                        found[_identity(_record(message))] += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard((message.topic() or "", message.partition() or 0))
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        if found:
            log.info("%s: %d records of batch %d are already published", self._job, found.total(), batch.number)
        return found

    def _commit(self, batch: Batch) -> None:
        request = ConsumerGroupTopicPartitions(self._group, _places(batch))
        admin = AdminClient(dict(self._cluster.confluent("admin")), logger=log)
        answers = admin.alter_consumer_group_offsets([request], request_timeout=_TIMEOUT_S)
        for answer in answers.values():
            for place in answer.result(2 * _TIMEOUT_S).topic_partitions:
                if place.error is not None:
                    raise KafkaException(place.error)

    def close(self) -> None:
        """Discard undelivered records: they could still arrive after the next attempt of their batch."""
        owned, self._owned = self._owned, None
        if owned is not None:
            owned.destroy()


def _mark(job: str, batch: Batch) -> list[tuple[str, bytes]]:
    """Return the headers of the batch's records."""
    return [("job", job.encode()), ("batch", str(batch.number).encode()), ("query", batch.query.encode())]


def _places(batch: Batch) -> list[TopicPartition]:
    return [
        TopicPartition(topic, partition, offset, batch.proof)
        for topic, offsets in sorted(batch.positions.items())
        for partition, offset in sorted(offsets.items())
    ]


def last_published(cluster: Cluster, group: str, query: str) -> int:
    """Return the last batch of the query with a proof in the group; -1 if there is none. Raises KafkaException."""
    _wait_for_coordinator(cluster, group)
    request = ConsumerGroupTopicPartitions(group)
    # Keep a reference to the client: if it is garbage-collected, the replies are lost.
    admin = AdminClient(dict(cluster.confluent("admin")), logger=log)
    answers = admin.list_consumer_group_offsets([request], require_stable=True, request_timeout=_TIMEOUT_S)
    places = answers[group].result(2 * _TIMEOUT_S).topic_partitions or []
    return max((_batch(place.metadata, query) for place in places), default=-1)


def _wait_for_coordinator(cluster: Cluster, group: str) -> None:
    """Wait until the group has a coordinator. Raises KafkaException.

    librdkafka 2.16's admin client crashes if the reply to OffsetFetch is NOT_COORDINATOR, as it is at first in a new
    Kafka cluster. A consumer retries the request.
    """
    consumer = Consumer({**cluster.confluent("consumer"), "group.id": group}, logger=log)
    try:
        consumer.committed([TopicPartition(group, 0)], _TIMEOUT_S)  # any partition
    finally:
        consumer.close()


def _batch(metadata: str | None, query: str) -> int:
    """Return the batch number in the metadata; -1 if another checkpoint or program wrote it."""
    try:
        proof = json.loads(metadata or "null")
    except ValueError:
        return -1
    if not isinstance(proof, dict) or proof.get("query") != query or not isinstance(proof.get("batch"), int):
        return -1
    return int(proof["batch"])


def _send(
    owned: OwnedProducer,
    records: Iterable[Record],
    headers: list[tuple[str, bytes]],
    count: int,
    reached: Callable[[str], None],
    failures: list[KafkaError] | None = None,
) -> int:
    """Produce the records, waiting while the producer's queue is full. Return their number."""

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None and failures is not None:
            failures.append(error)

    sent = 0
    for record in records:
        if sent == count // 2 and reached is not _pass:
            owned.producer.flush(_TIMEOUT_S)
            reached("mid-publish")
        while True:
            try:
                owned.producer.produce(
                    record.topic, record.value, record.key, headers=list(headers), on_delivery=delivered
                )
                break
            except BufferError:
                owned.producer.poll(0.1)
        sent += 1
        if sent % 1000 == 0:
            owned.producer.poll(0)
    return sent


def _record(message: Message) -> Record:
    key, value = message.key(), message.value()
    return Record(message.topic() or "", _bytes(key), _bytes(value))


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _identity(record: Record) -> bytes:
    """Return a digest that identifies the record in its batch: of topic and key or, without a key, topic and value."""
    digest = hashlib.blake2b(record.topic.encode() + b"\0", digest_size=16)
    digest.update(b"v" + (record.value or b"") if record.key is None else b"k" + record.key)
    return digest.digest()


def _missing(records: Iterable[Record], found: "Counter[bytes]") -> Iterable[Record]:
    for record in records:
        if found:
            identity = _identity(record)
            if found[identity] > 0:
                found[identity] -= 1
                continue
        yield record
