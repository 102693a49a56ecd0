"""What a scenario asks of a client, whichever it is.

A driver starts nothing but clients: it knows an address, and nothing of the broker behind it. Where a client cannot
tell the test something (kcat and the console tools do not report a commit), the driver asks the broker through
`observer`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

DEADLINE_S = 40.0
"""How long a client may take for one step of a scenario, a broker's restart included."""

Headers = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """What a test sends. Text only, without tabs and line breaks: the command-line clients read lines."""

    value: str
    key: str | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Received:
    """What a test gets back."""

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


class MissingClientError(Exception):
    """The client is not installed here; the message says how to get it."""


class ProducerSession(Protocol):
    """A producer that stays up, idempotent wherever the client can be."""

    def send(self, messages: Sequence[Message]) -> None:
        """Hand the messages to the client, which sends them when it can; does not wait for acknowledgements."""

    def finish(self) -> None:
        """Return when every message is acknowledged; `AssertionError` when one was given up."""


class ConsumerSession(Protocol):
    """A member of a consumer group that stays up."""

    def receive(self, count: int) -> list[Received]:
        """The next `count` records in the order of their arrival; `AssertionError` when they do not come."""

    def commit(self) -> None:
        """Commit the position after what `receive` has returned, and return when the broker has it."""


class ClientDriver(Protocol):
    """One client library or tool."""

    def create_topic(self, topic: str, partitions: int) -> None: ...

    def produce(self, topic: str, messages: Sequence[Message], *, codec: str = "none") -> None:
        """Return when all are acknowledged."""

    def consume_from_beginning(self, topic: str, count: int) -> list[Received]:
        """The first `count` records of all partitions, without a group."""

    def consume_from_offset(self, topic: str, partition: int, offset: int, count: int) -> list[Received]: ...

    def consume_from_timestamp(self, topic: str, partition: int, timestamp_ms: int, count: int) -> list[Received]:
        """From the first record that is not older than `timestamp_ms`, which the client asks ListOffsets for."""

    def producer(self, topic: str) -> AbstractContextManager[ProducerSession]: ...

    def group_consumer(self, topic: str, group: str) -> AbstractContextManager[ConsumerSession]:
        """A subscribed consumer that begins at the earliest offset where the group has none."""

    def close(self) -> None: ...
