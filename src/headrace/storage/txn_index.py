"""The `.txnindex` file of a segment: the transactions aborted in it, for consumers that read only committed records.

Format: version, producer id, first offset, last offset, last stable offset (2 + 4 * 8 bytes, big-endian), in order of
last offset.
"""

import os
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """`last_offset` is that of the abort marker; `last_stable_offset` as it was after the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Reads and writes one file, which does not exist while nothing was aborted."""

    __slots__ = ("path",)

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[AbortedTransaction]:
        """Every entry; a torn last one is passed over."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole = len(data) // _ENTRY.size * _ENTRY.size
        return [AbortedTransaction(*fields) for _, *fields in _ENTRY.iter_unpack(data[:whole])]

    def append(self, transaction: AbortedTransaction) -> None:
        """Raises OSError."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, _ENTRY.pack(_VERSION, *transaction))
        finally:
            os.close(descriptor)

    def aborted_between(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions that overlap `[fetch_offset, upper_bound)`, and whether no later segment can have one."""
        found = []
        for transaction in self.read():
            if transaction.last_offset >= fetch_offset and transaction.first_offset < upper_bound:
                found.append(transaction)
            if transaction.last_stable_offset >= upper_bound:
                return found, True
        return found, False

    def truncate(self, offset: int) -> None:
        """Drop transactions that end at or after `offset`."""
        kept = sum(1 for transaction in self.read() if transaction.last_offset < offset)
        if self.path.exists():
            os.truncate(self.path, kept * _ENTRY.size)

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)
