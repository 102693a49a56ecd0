"""A record on its way to a topic, as `headrace produce` read it, and what the client library leaves untyped."""

from typing import TYPE_CHECKING, NamedTuple, cast

if TYPE_CHECKING:
    from confluent_kafka import Message


class Record(NamedTuple):
    """None for `partition` and `timestamp_ms` leaves them to the producer; None for key or value is Kafka's null."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    partition: int | None = None
    timestamp_ms: int | None = None


def headers(message: "Message") -> list[tuple[str, bytes | None]]:
    """The headers of a consumed record, in order; a name may occur more than once."""
    return cast("list[tuple[str, bytes | None]]", message.headers() or [])
