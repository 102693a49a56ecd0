"""Check a history for violations of transactional guarantees, using only what the clients recorded.

Sound but not complete: every anomaly found is a violation under any schedule of requests.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from tests.checker.history import End, History, Outcome, Partition, Read, Source, Transaction


class Kind(StrEnum):
    LOST_WRITE = "lost write"
    """A record of a committed transaction is missing."""
    ABORTED_READ = "aborted read"
    """A consumer read a record of an aborted transaction."""
    DIRTY_READ = "dirty read"
    """A consumer read a record before its commit was requested, or one that is not in the final log."""
    SPLIT_TRANSACTION = "split transaction"
    """Only a part of a transaction is present."""
    DUPLICATE = "duplicate"
    """A record is present twice."""
    REORDERED = "reordered"
    """Records of a producer are not in the order of sending."""
    BACKWARDS = "backwards"
    """A consumer read an offset that is not above the previous one."""
    SKIPPED = "skipped"
    """A consumer missed a record between two that it read."""
    REWRITTEN = "rewritten"
    """An offset has had two values."""
    UNKNOWN_VALUE = "unknown value"
    """A record was read that nobody sent."""
    NOT_FENCED = "not fenced"
    """A producer committed after its successor had started."""
    LOST_COPY = "lost copy"
    """A committed record was not copied: its offset was committed without its copy."""
    COPIED_TWICE = "copied twice"
    """A committed record was copied twice: its copy was committed without its offset."""
    WRONG_COPY = "wrong copy"
    """A copy has no original with that value."""
    HANGING = "hanging"
    """A partition's end stays unreadable after all transactions have ended."""


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def analyse(history: History) -> list[Anomaly]:
    """Return all anomalies in the history."""
    return list(_Analysis(history).run())


@dataclass(frozen=True, slots=True)
class _Sent:
    transaction: Transaction
    partition: Partition
    position: int
    """Position in the transaction."""

    @property
    def order(self) -> tuple[int, int]:
        """The position among the records of its incarnation."""
        return self.transaction.number, self.position


class _Analysis:
    def __init__(self, history: History) -> None:
        self._history = history
        self._sent = {
            value: _Sent(transaction, partition, position)
            for transaction in history.transactions
            for position, (partition, value) in enumerate(transaction.records)
        }
        self._starts = {(start.producer, start.incarnation): start for start in history.starts}
        self._final = Counter(value for end in history.final.values() for _, value in end.records)

    def run(self) -> Iterator[Anomaly]:
        for transaction in self._history.transactions:
            yield from self._check_transaction(transaction)
        for partition, end in self._history.final.items():
            yield from self._check_partition(partition, end)
        for session in _sessions(self._history.reads).values():
            yield from self._check_session(session)
        yield from self._check_offsets()
        yield from self._check_fences()
        for original, copy in self._history.copied.items():
            yield from self._check_copies(original, copy)

    def _check_transaction(self, transaction: Transaction) -> Iterator[Anomaly]:
        values = [value for _, value in transaction.records]
        missing = [value for value in values if value not in self._final]
        if transaction.outcome is Outcome.COMMITTED:
            if missing:
                yield Anomaly(Kind.LOST_WRITE, f"{transaction.name} is committed, without {_some(missing)}")
        elif transaction.outcome is Outcome.ABORTED and len(missing) < len(values):
            found = [value for value in values if value in self._final]
            yield Anomaly(Kind.ABORTED_READ, f"{transaction.name} is aborted, but has {_some(found)}")
        if 0 < len(missing) < len(values):
            yield Anomaly(Kind.SPLIT_TRANSACTION, f"{transaction.name} is present without {_some(missing)}")

    def _check_partition(self, partition: Partition, end: End) -> Iterator[Anomaly]:
        if end.stable != end.high_watermark:
            yield Anomaly(Kind.HANGING, f"{_name(partition)} ends at {end.stable} of {end.high_watermark}")
        last: dict[str, tuple[_Sent, str]] = {}
        for offset, value in end.records:
            sent = self._sent.get(value)
            if sent is None or sent.partition != partition:
                yield Anomaly(Kind.UNKNOWN_VALUE, f"{value!r} at {offset} of {_name(partition)}")
                continue
            if self._final[value] > 1:
                yield Anomaly(Kind.DUPLICATE, f"{value!r} at {offset} of {_name(partition)} is also at another offset")
            before = last.get(sent.transaction.producer)
            if before is not None and self._precedes(sent, before[0]):
                yield Anomaly(Kind.REORDERED, f"{value!r} after {before[1]!r} in {_name(partition)}")
            last[sent.transaction.producer] = sent, value

    def _precedes(self, one: _Sent, other: _Sent) -> bool:
        """Return True if one record was certainly sent before the other."""
        if one.transaction.incarnation == other.transaction.incarnation:
            return one.order < other.order
        return self._is_successor(other.transaction.incarnation, one.transaction)

    def _is_successor(self, incarnation: int, transaction: Transaction) -> bool:
        """Return True if the incarnation began to start after that of `transaction` had started, and so fences it."""
        own = self._starts.get((transaction.producer, transaction.incarnation))
        other = self._starts.get((transaction.producer, incarnation))
        return own is not None and other is not None and own.time < other.requested

    def _check_session(self, session: Sequence[Read]) -> Iterator[Anomaly]:
        """Check the reads of one partition by one session."""
        partition = session[0].partition
        for earlier, later in pairwise(session):
            if later.offset <= earlier.offset:
                text = f"{later.reader} got {later.offset} after {earlier.offset} of {_name(partition)}"
                yield Anomaly(Kind.BACKWARDS, text)
        for read in session:
            yield from self._check_read(read)
        offsets = {read.offset for read in session}
        last = max(offsets)
        end = self._history.final.get(partition)
        skipped = [offset for offset, _ in (end.records if end else ()) if offset < last and offset not in offsets]
        if skipped:
            text = f"{session[0].reader} missed {_some(skipped)} of {_name(partition)}, but read {last}"
            yield Anomaly(Kind.SKIPPED, text)

    def _check_read(self, read: Read) -> Iterator[Anomaly]:
        sent = self._sent.get(read.value)
        read_text = f"{read.value!r} at {read.offset} of {_name(read.partition)} to {read.reader}"
        if sent is None or sent.partition != read.partition:
            yield Anomaly(Kind.UNKNOWN_VALUE, read_text)
        elif sent.transaction.outcome is Outcome.ABORTED:
            yield Anomaly(Kind.ABORTED_READ, read_text)
        elif read.time < sent.transaction.commit_requested:
            yield Anomaly(Kind.DIRTY_READ, f"{read_text}, before its commit was requested")
        elif read.partition in self._history.final and read.value not in self._final:
            yield Anomaly(Kind.DIRTY_READ, f"{read_text}, but it is not in the final log")

    def _check_offsets(self) -> Iterator[Anomaly]:
        """Check that an offset has one value and a value one offset, for all readers at any time."""
        values: dict[tuple[Partition, int], str] = {}
        positions: dict[str, tuple[Partition, int]] = {}
        final = (
            (partition, offset, value)
            for partition, end in self._history.final.items()
            for offset, value in end.records
        )
        read = ((read.partition, read.offset, read.value) for read in self._history.reads)
        for partition, offset, value in (*final, *read):
            if values.setdefault((partition, offset), value) != value:
                text = f"{offset} of {_name(partition)} is {value!r} and {values[partition, offset]!r}"
                yield Anomaly(Kind.REWRITTEN, text)
            if positions.setdefault(value, (partition, offset)) != (partition, offset) and self._final[value] < 2:
                yield Anomaly(Kind.DUPLICATE, f"{value!r} at {positions[value]} and at {(partition, offset)}")

    def _check_fences(self) -> Iterator[Anomaly]:
        """Check that commits requested after the start of a successor fail."""
        for transaction in self._history.transactions:
            if transaction.outcome is not Outcome.COMMITTED:
                continue
            for start in self._history.starts:
                if start.producer != transaction.producer or start.time > transaction.commit_requested:
                    continue
                if self._is_successor(start.incarnation, transaction):
                    text = f"{transaction.name} was committed after incarnation {start.incarnation} had started"
                    yield Anomaly(Kind.NOT_FENCED, text)

    def _check_copies(self, original: str, copy: str) -> Iterator[Anomaly]:
        originals = {
            Source(partition.number, offset): value
            for partition, end in self._history.final.items()
            if partition.topic == original
            for offset, value in end.records
        }
        copies: Counter[Source] = Counter()
        for partition, end in self._history.final.items():
            if partition.topic != copy:
                continue
            for _, value in end.records:
                sent = self._sent.get(value)
                if sent is None:
                    continue
                source = sent.transaction.sources[sent.position]
                copies[source] += 1
                if not value.endswith(f" {originals.get(source)}"):
                    yield Anomaly(Kind.WRONG_COPY, f"{value!r} of {source}, which is {originals.get(source)!r}")
        for source, value in originals.items():
            if copies[source] == 0:
                yield Anomaly(Kind.LOST_COPY, f"{value!r}, {source}")
            elif copies[source] > 1:
                yield Anomaly(Kind.COPIED_TWICE, f"{value!r}, {source}, {copies[source]} times")


def _sessions(reads: Sequence[Read]) -> Mapping[tuple[str, Partition], list[Read]]:
    sessions: dict[tuple[str, Partition], list[Read]] = defaultdict(list)
    for read in reads:
        sessions[read.reader, read.partition].append(read)
    return sessions


def _name(partition: Partition) -> str:
    return f"{partition.topic}-{partition.number}"


def _some(items: Sequence[object]) -> str:
    shown = ", ".join(map(repr, items[:4]))
    return shown if len(items) <= 4 else f"{shown} and {len(items) - 4} more"
