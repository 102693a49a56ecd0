"""The transactional side of a client library, as the scenarios in `test_transactions.py` need it."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

END: Final = "end"
"""The value after which a reader stops reading a partition."""


class FencedError(Exception):
    """The producer was replaced by another of its transactional id, or the broker has aborted its transaction."""


class Record(NamedTuple):
    partition: int
    value: str


class TransactionalProducer(Protocol):
    """A producer that has initialised its transactional id. Every method may raise FencedError."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, values: Sequence[str]) -> None:
        """Return when all are acknowledged."""

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit the offsets, by topic and partition, with the transaction."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """Go, whatever became of the transaction."""


class TransactionalClient(Protocol):
    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer: ...

    def read_committed(self, topic: str, partitions: int) -> list[Record]:
        """Committed records from the beginning up to the first `END` of every partition, without these."""

    def close(self) -> None: ...
