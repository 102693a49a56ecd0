"""Recorded histories: requests, answers and reads of every client, with their times.

A client appends a JSON line to its file before every request and after the answer, so that its history is complete
up to the moment it is killed. Times are in ns of the machine's monotonic clock, which processes share.
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
    partition: int
    offset: int


class Outcome(Enum):
    COMMITTED = "committed"
    """The client got an acknowledgement of the commit."""
    ABORTED = "aborted"
    """The client never requested a commit, or learned that the transaction was aborted."""
    UNKNOWN = "unknown"
    """The client requested a commit and got no answer: both outcomes are valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transaction. Values of records are unique and identify them."""

    producer: str
    """The transactional id."""
    incarnation: int
    """Number of the process among those with this transactional id."""
    number: int
    """Number of the transaction in its incarnation."""
    records: Sequence[tuple[Partition, str]]
    """In order of sending."""
    sources: Sequence[Source] = ()
    """For copies: the originals, in the order of `records`."""
    outcome: Outcome
    commit_requested: int = NEVER
    """In ns."""

    @property
    def name(self) -> str:
        return f"{self.producer}.{self.incarnation}.{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A record read by a `read_committed` consumer."""

    reader: str
    """A session of one consumer, which starts at the beginning of every partition and never seeks."""
    time: int
    """Time after the poll that returned the record, in ns."""
    partition: Partition
    offset: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The initialisation of a transactional id, which fences earlier producers."""

    producer: str
    incarnation: int
    requested: int
    time: int
    """Times of the request and the answer in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The final state of a partition: its committed records and its end offsets."""

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
    """Source topic to the topic that its records were copied to."""


def load(directory: Path, final: Mapping[Partition, End], copied: Mapping[str, str]) -> History:
    """Load the history from the files of a directory, one per client."""
    transactions: list[Transaction] = []
    reads: list[Read] = []
    starts: list[Start] = []
    for path in sorted(directory.glob("*.jsonl")):
        open_transaction: dict[str, Any] | None = None
        producer, _, incarnation = path.stem.rpartition(".")
        begin = 0
        for event in _events(path):
            match event["event"]:
                case "starting":
                    begin = event["time"]
                case "started":
                    start = Start(producer=producer, incarnation=int(incarnation), requested=begin, time=event["time"])
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
        if line.endswith("\n"):  # a killed client may leave an incomplete last line
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
        commit_requested=event.get("commit", NEVER),
    )
