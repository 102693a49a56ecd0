"""Records to produce, and the headers of consumed ones, which the client library leaves untyped."""

from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from confluent_kafka import Message


class Record(NamedTuple):
    """A record. None: for key or value, Kafka's null; for `partition` and `timestamp_ms`, the producer's choice."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp_ms: int | None = None


def headers(message: "Message") -> list[tuple[str, bytes | None]]:
    """Return the headers of a consumed record, in order; names may repeat."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])
