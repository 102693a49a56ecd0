"""Send records as fast as they are read, and count the acknowledgements."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace.cli import output
from headrace.cli.cluster import client_config, topic_exists
from headrace.cli.failures import CommandError, refused
from headrace.cli.progress import SendProgress
from headrace.cli.record import Record
from headrace.cli.record_sources import LineFormat, Source, read_records

_POLL_EVERY = 500
_POLL_AFTER_S = 0.1
"""With slow input, failures are checked at the first line after this time."""
_QUEUED_RECORDS = 200_000

_CONSEQUENCES = (KafkaError._FATAL, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
"""Errors of records whose producer cannot be used any more; they do not name the cause."""
_NOT_IDEMPOTENT = (
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
)
"""Errors that only idempotent producers get: from brokers before Kafka 0.11, for topics in their format, by ACLs."""
_WITHOUT_IDEMPOTENCE = "--no-idempotent writes without idempotence; retries may then duplicate or reorder records."


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Options for all records. The headers are added to the record's, and the key is for records without a key.

    Partition and timestamp override the record's.
    """

    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None
    keep_partitions: bool
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderOptions:
    compression: str
    acks: str
    idempotent: bool
    timeout_s: float
    quiet: bool


@dataclass(slots=True)
class Sent:
    """Records that brokers acknowledged, or with acks=0 those that were sent."""

    topic: str
    records: int = 0
    size: int = 0
    """Bytes of values."""
    seconds: float = 0.0
    last_offsets: dict[int, int] = field(default_factory=dict)
    """By partition; empty with acks=0."""
    interrupted: bool = False
    failure: KafkaError | None = None
    """The first failed delivery, or the cause if it failed because the producer cannot be used any more."""

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        """Count a record: librdkafka's delivery callback."""
        if error is not None:
            self.failure = self.failure or error
            return
        self.records += 1
        self.size += len(message)
        partition, offset = message.partition(), message.offset()
        if partition is not None and offset is not None and offset >= 0:
            self.last_offsets[partition] = offset

    def ended(self, error: KafkaError) -> None:
        """Note the error that ended the producer."""
        if self.failure is None or self.failure.code() in _CONSEQUENCES:
            self.failure = error

    def as_json(self) -> dict[str, object]:
        return {
            "topic": self.topic,
            "records": self.records,
            "bytes": self.size,
            "seconds": round(self.seconds, 3),
            "last_offsets": {str(partition): self.last_offsets[partition] for partition in sorted(self.last_offsets)},
        }

    def summary(self) -> str:
        """Format as '1 record (5 B) to t, partition 2 offset 41', or with duration and rate for many records."""
        what = f"{output.count(self.records, 'record')} ({output.size(self.size)}) to {self.topic}"
        if self.records == 1 and self.last_offsets:
            [(partition, offset)] = self.last_offsets.items()
            return f"{what}, partition {partition} offset {offset:,}"
        rate = f": {self.records / self.seconds:,.0f} records/s" if self.records >= 1000 else ""
        return f"{what} in {output.seconds(self.seconds)}{rate}"


def send(
    bootstrap: str,
    topic: str,
    sources: Sequence[Source],
    line_format: LineFormat,
    defaults: Defaults,
    options: SenderOptions,
) -> Sent:
    """Send the records of `sources`. Raises CommandError for the first malformed record or failed delivery.

    Ctrl-C stops reading; records already read are still sent, unless Ctrl-C is pressed again.
    """
    sent = Sent(topic)
    producer = Producer(_config(bootstrap, options))
    started = time.monotonic()
    with SendProgress(topic, sources, enabled=not options.quiet) as progress:
        try:
            polled = started
            for record, size in _records(sources, line_format, options.quiet):
                _queue(producer, record, defaults, sent)
                progress.read(size)
                now = time.monotonic()
                if progress.records % _POLL_EVERY == 0 or now - polled > _POLL_AFTER_S:
                    polled = now
                    with _noting_failure(sent):
                        producer.poll(0)
                    progress.show(sent.records)
                if sent.failure is not None:
                    break
        except KeyboardInterrupt:
            sent.interrupted = True
        finally:
            # Deliver the records that were read before a malformed line or Ctrl-C.
            _flush(producer, sent, progress)
    sent.seconds = time.monotonic() - started
    if sent.failure is not None:
        raise _failure(sent, sent.failure, bootstrap, producer, options)
    return sent


def _failure(
    sent: Sent, failure: KafkaError, bootstrap: str, producer: Producer, options: SenderOptions
) -> CommandError:
    error = refused(failure, bootstrap, f"producing to '{sent.topic}'")
    hint = error.hint
    if failure.code() == KafkaError._MSG_TIMED_OUT and topic_exists(producer, sent.topic) is False:
        what = f"topic '{sent.topic}' was deleted while producing to it"
        return CommandError(f"{what}; {output.count(sent.records, 'record')} delivered before that")
    if failure.code() == KafkaError._MSG_TIMED_OUT and sent.records:
        hint = "The broker stopped replying. --timeout sets the maximum time to wait for an acknowledgement."
    if options.idempotent and failure.code() in _NOT_IDEMPOTENT:
        hint = f"{hint} {_WITHOUT_IDEMPOTENCE}" if hint else _WITHOUT_IDEMPOTENCE
    return CommandError(f"{error.what}; {output.count(sent.records, 'record')} delivered before that", hint)


def _config(bootstrap: str, options: SenderOptions) -> dict[str, Any]:
    return client_config(
        bootstrap,
        acks=options.acks,
        compression_type=options.compression,
        enable_idempotence=options.idempotent,
        message_timeout_ms=round(options.timeout_s * 1000),
        linger_ms=5,
        queue_buffering_max_messages=_QUEUED_RECORDS,
        # Partition by key as Kafka's own producers do; librdkafka's default differs.
        partitioner="murmur2_random",
        # The broker enforces its own limit.
        message_max_bytes=1_000_000_000,
        allow_auto_create_topics=False,
    )


@contextmanager
def _noting_failure(sent: Sent) -> Iterator[None]:
    """Note the error that ended the producer, which `poll` and `flush` raise once."""
    try:
        yield
    except KafkaException as error:
        sent.ended(error.args[0])


def _queue(producer: Producer, record: Record, defaults: Defaults, sent: Sent) -> None:
    partition = defaults.partition
    if partition is None and defaults.keep_partitions:
        partition = record.partition
    timestamp = record.timestamp_ms if defaults.timestamp_ms is None else defaults.timestamp_ms
    while sent.failure is None:
        try:
            producer.produce(
                sent.topic,
                value=record.value,
                key=defaults.key if record.key is None else record.key,
                partition=-1 if partition is None else partition,
                timestamp=timestamp or 0,
                headers=[*record.headers, *defaults.headers],
                on_delivery=sent.delivered,
            )
        except BufferError:
            with _noting_failure(sent):
                producer.poll(0.1)
        except KafkaException as error:
            sent.failure = error.args[0]
        else:
            return


def _flush(producer: Producer, sent: Sent, progress: SendProgress) -> None:
    while len(producer):
        if sent.failure is not None:
            producer.purge()
        with _noting_failure(sent):
            producer.flush(0.1)
        progress.show(sent.records)


def _records(sources: Sequence[Source], line_format: LineFormat, quiet: bool) -> Iterator[tuple[Record, int]]:
    for source in sources:
        if source.is_terminal and output.is_terminal(sys.stderr) and not quiet:
            output.tell("Type one record per line; Ctrl-D ends the input.")
        yield from read_records(source, line_format)
