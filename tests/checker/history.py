"""Recorded histories: what every client asked, was answered and read, and when.

A client appends one line of JSON to its file before it asks and one after the answer, so that a history is complete up
to the moment in which its client is killed. Times are in ns of the machine's monotonic clock, which processes share.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

NEVER: Final = 1 << 63
"""Later than any time in a history."""


class Partition(NamedTuple):
    topic: str
    number: int


class Source(NamedTuple):
    """The record that a copy was made of."""

    partition: int
    offset: int


class Outcome(Enum):
    COMMITTED = "committed"
    """The client was told so."""
    ABORTED = "aborted"
    """It never asked for a commit, or was told that the transaction is aborted."""
    UNKNOWN = "unknown"
    """It asked for a commit and got no answer, so both are right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transaction. Its records are named by their values, which are unique."""

    producer: str
    """The transactional id."""
    incarnation: int
    """Names the process among those with this transactional id."""
    number: int
    """Counts the transactions of an incarnation."""
    records: Sequence[tuple[Partition, str]]
    """In the order in which they were sent."""
    sources: Sequence[Source] = ()
    """For copies: of which records, in the order of `records`."""
    outcome: Outcome
    commit_asked: int = NEVER
    """When, in ns."""

    @property
    def name(self) -> str:
        return f"{self.producer}.{self.incarnation}.{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One record that a `read_committed` consumer was given."""

    reader: str
    """One session of one consumer: it begins at the start of every partition and never seeks."""
    time: int
    """After the poll that brought it, in ns."""
    partition: Partition
    offset: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A producer has initialised its transactional id, which fences those before it."""

    producer: str
    incarnation: int
    asked: int
    time: int
    """When it asked, and when it was answered, in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A partition as it is when all is over: its committed records, and where it ends for whom."""

    records: Sequence[tuple[int, str]]
    """Offset and value."""
    stable: int
    high_watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    transactions: Sequence[Transaction] = ()
    reads: Sequence[Read] = ()
    starts: Sequence[Start] = ()
    final: Mapping[Partition, End] = field(default_factory=dict)
    copied: Mapping[str, str] = field(default_factory=dict)
    """The topic that every record of a topic was copied to."""


def load(directory: Path, final: Mapping[Partition, End], copied: Mapping[str, str]) -> History:
    """The history that the files of a directory, one per client, make up."""
    transactions: list[Transaction] = []
    reads: list[Read] = []
    starts: list[Start] = []
    for path in sorted(directory.glob("*.jsonl")):
        open_transaction: dict[str, Any] | None = None
        producer, _, incarnation = path.stem.rpartition(".")
        asked = 0
        for event in _events(path):
            match event["event"]:
                case "starting":
                    asked = event["time"]
                case "started":
                    start = Start(producer=producer, incarnation=int(incarnation), asked=asked, time=event["time"])
                    starts.append(start)
                case "transaction":
                    if open_transaction is not None:
                        transactions.append(_transaction(producer, int(incarnation), open_transaction))
                    open_transaction = event
                case "commit" | "committed" | "aborted" as step:
                    assert open_transaction is not None, path
                    open_transaction[step] = event["time"]
                case "poll":
                    reads += [
                        Read(
                            reader=f"{path.stem}.{event['session']}",
                            time=event["time"],
                            partition=Partition(topic, partition),
                            offset=offset,
                            value=value,
                        )
                        for topic, partition, offset, value in event["records"]
                    ]
        if open_transaction is not None:
            transactions.append(_transaction(producer, int(incarnation), open_transaction))
    return History(transactions=transactions, reads=reads, starts=starts, final=final, copied=copied)


def _events(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # the last one of a client that was killed may be torn
            yield json.loads(line)


def _transaction(producer: str, incarnation: int, event: Mapping[str, Any]) -> Transaction:
    if "committed" in event:
        outcome = Outcome.COMMITTED
    elif "commit" not in event or "aborted" in event:
        outcome = Outcome.ABORTED
    else:
        outcome = Outcome.UNKNOWN
    return Transaction(
        producer=producer,
        incarnation=incarnation,
        number=event["number"],
        records=[(Partition(topic, partition), value) for topic, partition, value in event["records"]],
        sources=[Source(*source) for source in event.get("sources", ())],
        outcome=outcome,
        commit_asked=event.get("commit", NEVER),
    )
