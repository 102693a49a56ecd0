"""The interface of a client in a scenario.

A driver starts only clients, and knows only the address of a broker. If a client cannot report something (kcat and the
console tools do not report commits), the driver asks the broker through `observer`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

DEADLINE_S = 40.0
"""Time limit for a client in one step of a scenario, including a broker's restart."""

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to send. Text without tabs and line breaks: the command-line clients read lines."""

    value: str
    key: str | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Received:
    """A consumed record."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes
    key: bytes | None
    headers: Headers

    @property
    def message(self) -> Message:
        key = None if self.key is None else self.key.decode()
        return Message(value=self.value.decode(), key=key, headers=self.headers)


def of_python_client(record: Any) -> Received:
    """Return a record of kafka-python or aiokafka."""
    return Received(
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp,
        value=record.value,
        key=record.key,
        headers=tuple(record.headers),
    )


class MissingClientError(Exception):
    """The client is not installed; the message explains how to install it."""


class ProducerSession(Protocol):
    """A long-lived producer, idempotent if the client supports it."""

    def send(self, messages: Sequence[Message]) -> None:
        """Hand over messages for sending; do not wait for acknowledgements."""

    def finish(self) -> None:
        """Wait until all messages are acknowledged; raise AssertionError if one has failed."""


class ConsumerSession(Protocol):
    """A long-lived member of a consumer group."""

    def receive(self, count: int) -> list[Received]:
        """Return the next `count` records in order of arrival; raise AssertionError on a timeout."""

    def commit(self) -> None:
        """Commit the position after the received records, and wait for the broker's answer."""


class ClientDriver(ABC):
    @abstractmethod
    def create_topic(self, topic: str, partitions: int) -> None: ...

    def produce(self, topic: str, messages: Sequence[Message], *, codec: str = "none") -> None:
        """Send messages and wait for all acknowledgements."""
        with self.producer(topic, codec=codec) as session:
            session.send(messages)
            session.finish()

    @abstractmethod
    def consume_from_beginning(self, topic: str, count: int) -> list[Received]:
        """Return the first `count` records of all partitions, without a group."""

    @abstractmethod
    def consume_from_offset(self, topic: str, partition: int, offset: int, count: int) -> list[Received]: ...

    @abstractmethod
    def consume_from_timestamp(self, topic: str, partition: int, timestamp_ms: int, count: int) -> list[Received]:
        """Consume from the first record not older than `timestamp_ms`, found by a ListOffsets request of the client."""

    @abstractmethod
    def producer(self, topic: str, *, codec: str = "none") -> AbstractContextManager[ProducerSession]: ...

    @abstractmethod
    def group_consumer(self, topic: str, group: str) -> AbstractContextManager[ConsumerSession]:
        """A subscribed consumer that starts at the earliest offset if the group has none."""

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close what is still open."""
