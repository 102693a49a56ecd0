"""The interface of a transactional client in `test_transactions.py`."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

END: Final = "end"
"""A value that ends the reading of a partition."""


class FencedError(Exception):
    """The producer was replaced by one with the same transactional id, or its transaction was aborted by the broker."""


class Record(NamedTuple):
    partition: int
    value: str


class TransactionalProducer(Protocol):
    """A producer with an initialised transactional id. Every method may raise FencedError."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, values: Sequence[str]) -> None:
        """Send records and wait for all acknowledgements."""

    def send_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        """Commit offsets by topic and partition with the transaction."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def close(self) -> None:
        """Close the producer without ending its transaction."""


class TransactionalClient(Protocol):
    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer: ...

    def read_committed(self, topic: str, partitions: int) -> list[Record]:
        """Return all committed records before the first `END` of every partition."""

    def close(self) -> None: ...
