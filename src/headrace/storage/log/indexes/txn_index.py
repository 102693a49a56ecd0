"""The `.txnindex` file of a segment: the transactions aborted in it, for READ_COMMITTED consumers.

Format: version, producer id, first offset, last offset, last stable offset (2 + 4 * 8 bytes, big-endian), ascending by
last offset.
"""

import errno
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from struct import Struct
from threading import Lock
from typing import Final, NamedTuple

from headrace.storage.files.atomic_file import open_file, read_file, replace_file

_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0
_BLOCK_ENTRIES: Final = 64
"""Entries that a search reads at a time, in one system call."""


class AbortedTransaction(NamedTuple):
    """`last_offset` is that of the abort marker, `last_stable_offset` the last stable offset after that marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Reads and writes one file, which exists only if a transaction was aborted. A flush may run in another thread."""

    __slots__ = ("_exists", "_tail", "_writing", "is_suspect", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._exists: bool | None = None
        self._tail: list[AbortedTransaction] = []
        """The last entries, if they could not be written yet: consumers must get them, too."""
        self._writing = Lock()
        self.is_suspect = False
        """True if entries may be missing or wrong after a crash: see `txn_recovery`."""

    @property
    def exists(self) -> bool:
        """True if the file exists; cached after the first check."""
        if self._exists is None:
            self._exists = self.path.exists()
        return self._exists

    def is_sound(self, size: int, base_offset: int) -> bool:
        """Return True if the file is a valid index for a segment with that base offset. Raises OSError."""
        if size % _ENTRY.size:
            return False
        last = base_offset - 1
        for version, _, first_offset, last_offset, _ in _ENTRY.iter_unpack(read_file(self.path)):
            if version != _VERSION or not first_offset <= last_offset or last_offset <= last:
                return False
            last = last_offset
        return True

    def read(self) -> list[AbortedTransaction]:
        """Return all entries but an incomplete last one."""
        tail = self._tail.copy()  # first, because a flush may be moving it to the file
        found = self._written()
        last = found[-1].last_offset if found else -1
        return found + [transaction for transaction in tail if transaction.last_offset > last]

    def _written(self) -> list[AbortedTransaction]:
        try:
            data = read_file(self.path)
        except FileNotFoundError:
            return []
        whole = len(data) // _ENTRY.size * _ENTRY.size
        return [AbortedTransaction(*fields) for _, *fields in _ENTRY.iter_unpack(data[:whole])]

    def contains(self, transactions: Sequence[AbortedTransaction]) -> bool:
        """Return True if the file has exactly these entries, and no incomplete one. Raises OSError."""
        data = read_file(self.path) if self.path.exists() else b""
        return data == _packed(transactions) and not self._tail

    def append(self, transaction: AbortedTransaction) -> None:
        """Append an entry. After an OSError, the entry is kept in memory, and `write_tail` tries again to write it."""
        with self._writing:
            self._exists = True
            self._tail.append(transaction)
            self._write_tail()

    def write_tail(self) -> None:
        """Write the entries that could not be written. Raises OSError."""
        if self._tail:
            with self._writing:
                if self._tail:  # a move may have taken them
                    self._write_tail()

    def _write_tail(self) -> None:
        data = _packed(self._tail)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            # Without O_APPEND: after a short write, the file ends with an incomplete entry.
            size = os.fstat(descriptor).st_size
            written = os.pwrite(descriptor, data, size - size % _ENTRY.size)
        finally:
            os.close(descriptor)
        del self._tail[: written // _ENTRY.size]
        if self._tail:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))

    @contextmanager
    def moving(self) -> Iterator[bytes]:
        """Yield the encoded entries, and block all writes until the caller has changed `path` to a copy with them.

        If the caller raises an exception, the old file stays in use. Raises OSError.
        """
        with self._writing:
            data = read_file(self.path) if self.path.exists() else b""
            yield data[: len(data) // _ENTRY.size * _ENTRY.size] + _packed(self._tail)
            self._tail.clear()

    def aborted_between(self, fetch_offset: int, upper_bound: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the transactions that overlap `[fetch_offset, upper_bound)`, and True if no later segment has any."""
        found: list[AbortedTransaction] = []
        if not self.exists:
            return found, False
        with closing(self._ended_from(fetch_offset)) as transactions:
            for transaction in transactions:
                if transaction.first_offset < upper_bound:
                    found.append(transaction)
                if transaction.last_stable_offset >= upper_bound:
                    return found, True
        return found, False

    def _ended_from(self, offset: int) -> Generator[AbortedTransaction, None, None]:
        """Yield the entries of `read` whose transactions end at or after `offset`. Raises OSError."""
        tail = self._tail.copy()  # first, because a flush may be moving it to the file
        last = offset - 1
        try:
            descriptor, size = open_file(self.path)
        except FileNotFoundError:
            pass
        else:
            try:
                for transaction in _search(descriptor, size, offset):
                    last = transaction.last_offset
                    yield transaction
            except OSError as error:
                error.filename = str(self.path)
                raise
            finally:
                os.close(descriptor)
        for transaction in tail:
            if transaction.last_offset > last:
                yield transaction

    def truncate(self, offset: int) -> None:
        """Drop transactions that end at or after `offset`."""
        with self._writing:
            self._tail = [transaction for transaction in self._tail if transaction.last_offset < offset]
            kept = sum(1 for transaction in self._written() if transaction.last_offset < offset)
            if self.path.exists():
                os.truncate(self.path, kept * _ENTRY.size)

    def replace(self, transactions: Sequence[AbortedTransaction]) -> None:
        """Replace all entries. Raises OSError."""
        if not transactions:
            self.clear()
            return
        with self._writing:
            replace_file(self.path, _packed(transactions))
            self._tail.clear()
            self._exists = True

    def clear(self) -> None:
        with self._writing:
            self.path.unlink(missing_ok=True)
            self._tail.clear()
            self._exists = False


def _search(descriptor: int, size: int, offset: int) -> Iterator[AbortedTransaction]:
    """Yield the entries that end at or after `offset`, but no incomplete last one. Raises OSError.

    Reads only blocks with such entries, and a few entries to find the first: consumers call this on the event loop.
    Another thread may append to the file or truncate it meanwhile.
    """
    start, end = 0, size // _ENTRY.size
    while end - start > _BLOCK_ENTRIES:
        middle = (start + end) // 2
        entry = os.pread(descriptor, _ENTRY.size, middle * _ENTRY.size)
        if len(entry) < _ENTRY.size or _ENTRY.unpack(entry)[3] >= offset:
            end = middle
        else:
            start = middle + 1
    whole = block_bytes = _BLOCK_ENTRIES * _ENTRY.size
    position = start * _ENTRY.size
    while whole == block_bytes:
        data = os.pread(descriptor, block_bytes, position)
        whole = len(data) // _ENTRY.size * _ENTRY.size
        position += whole
        for _, *fields in _ENTRY.iter_unpack(data[:whole]):
            transaction = AbortedTransaction(*fields)
            if transaction.last_offset >= offset:
                yield transaction


def _packed(transactions: Sequence[AbortedTransaction]) -> bytes:
    return b"".join(_ENTRY.pack(_VERSION, *transaction) for transaction in transactions)
