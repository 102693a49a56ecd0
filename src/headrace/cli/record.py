"""Records to produce, and the headers of consumed records, which the client library leaves untyped."""

from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from confluent_kafka import Message


class Record(NamedTuple):
    """A record. A key or value of None is Kafka's null; if partition or timestamp is None, the producer chooses it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp_ms: int | None = None


def headers(message: "Message") -> list[tuple[str, bytes | None]]:
    """Return the headers of a consumed record, in order; names may repeat."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])
