"""The interface of a transactional client in `test_transactions.py`."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, Protocol

from tests.clients.drivers.contract import DEADLINE_S

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


Poll = Callable[[], Iterable[tuple[int, bytes]]]
"""Return the next records, or none after a short time, as partition and value."""


class TransactionalClient(ABC):
    @abstractmethod
    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> TransactionalProducer: ...

    @abstractmethod
    def committed(self, topic: str, partitions: int) -> AbstractContextManager[Poll]:
        """A consumer of the committed records, from the beginning."""

    def read_committed(self, topic: str, partitions: int) -> list[Record]:
        """Return all committed records before the first `END` of every partition."""
        with self.committed(topic, partitions) as poll:
            return read_to_the_ends(poll, partitions)

    def close(self) -> None:  # noqa: B027  most have nothing to close
        """Close what is still open."""


def read_to_the_ends(poll: Poll, partitions: int) -> list[Record]:
    found: list[Record] = []
    ended: set[int] = set()
    deadline = time.monotonic() + DEADLINE_S
    while len(ended) < partitions:
        assert time.monotonic() < deadline, f"only partitions {ended} were read to the end: {found}"
        for partition, value in poll():
            if value == END.encode():
                ended.add(partition)
            elif partition not in ended:
                found.append(Record(partition, value.decode()))
    return found
