"""Print transactions and producers: tables on a terminal, tab-separated lines in a pipe, objects for JSON."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headrace import clock
from headrace.cli import output
from headrace.cli.cell_text import shortened
from headrace.cli.group_layout import Name, moment, print_table, seconds, terminal_width
from headrace.cli.hanging import Hanging
from headrace.cli.output import Cell, Column
from headrace.cli.transaction_calls import Listing, Place, Producer, Transaction

_START: Final = Column("Start offset", number=True)
_NEVER_MS: Final = 2**31 - 1
"""Timeout of transactions with two-phase commit, which never time out (KIP-939)."""
_COORDINATOR_EPOCH: Final = Column("Coord. epoch", number=True)


def print_listings(listings: Sequence[Listing], described: Mapping[str, Transaction] | None) -> None:
    """Print a line for each transactional id, with more columns if `described` is given."""
    if described is None:
        print_table(
            [
                Name("Transactional id"),
                Column("Coordinator", number=True),
                Column("Producer id", number=True),
                Column("State"),
            ],
            [
                [listing.transactional_id, _id(listing.coordinator), _id(listing.producer_id), listing.state]
                for listing in listings
            ],
        )
        return
    transactions = [described[listing.transactional_id] for listing in listings]
    if output.stdout_is_terminal():
        # Coordinator and epoch would not fit; `describe` shows them.
        print_table(
            [
                Name("Transactional id"),
                Column("Producer", number=True),
                Column("State"),
                Column("Age", number=True),
                Column("Timeout", number=True),
                Column("Partitions", number=True),
            ],
            [
                [
                    transaction.transactional_id,
                    _id(transaction.producer_id),
                    transaction.state,
                    seconds(_age_seconds(transaction), on_terminal=True),
                    _timeout(transaction),
                    len(transaction.places),
                ]
                for transaction in transactions
            ],
        )
        return
    titles = ("Transactional id", "Coordinator", "Producer id", "State", "Epoch", "Age", "Timeout", "Partitions")
    print_table(
        [Column(title) for title in titles],
        [
            [
                transaction.transactional_id,
                transaction.coordinator,
                transaction.producer_id,
                transaction.state,
                transaction.producer_epoch,
                seconds(_age_seconds(transaction), on_terminal=False),
                _timeout(transaction),
                len(transaction.places),
            ]
            for transaction in transactions
        ],
    )


def print_transactions(transactions: Sequence[Transaction], starts: Mapping[tuple[int, Place], int]) -> None:
    """Print all details of each transaction. `starts` has the first offset of a producer id in a partition."""
    on_terminal = output.stdout_is_terminal()
    for index, each in enumerate(transactions):
        if index:
            output.write_lines("")
        output.print_pairs(
            [
                ("Transactional id", _fitted(each.transactional_id, on_terminal)),
                ("State", each.state),
                ("Coordinator", _id(each.coordinator)),
                ("Producer id", _id(each.producer_id)),
                ("Epoch", each.producer_epoch),
                ("Timeout", _timeout(each)),
                ("Started", None if each.started_ms is None else moment(each.started_ms, on_terminal)),
                ("Age", seconds(_age_seconds(each), on_terminal)),
            ]
        )
        if each.places:
            output.write_lines("")
            print_table(
                [Name("Topic"), Column("Partition", number=True), _START],
                [
                    [*place, None if (start := starts.get((each.producer_id, place))) is None else _id(start)]
                    for place in each.places
                ],
            )


def print_producers(producers: Mapping[Place, Sequence[Producer]]) -> None:
    """Print a line for each producer of each partition."""
    found = [(place, item) for place, several in sorted(producers.items()) for item in several]
    if output.stdout_is_terminal():
        now_ms = clock.now_ms()
        print_table(
            [
                Name("Partition"),
                Column("Producer", number=True),
                Column("Epoch", number=True),
                _COORDINATOR_EPOCH,
                Column("Sequence", number=True),
                Column("Idle", number=True),
                Column("Open from", number=True),
            ],
            [
                [
                    _partition(*place),
                    _id(each.producer_id),
                    each.epoch,
                    each.coordinator_epoch,
                    each.last_sequence,
                    seconds(max(now_ms - each.last_timestamp_ms, 0) / 1000, on_terminal=True),
                    None if each.start_offset is None else _id(each.start_offset),
                ]
                for place, each in found
            ],
        )
        return
    titles = ("Topic", "Partition", "Producer id", "Epoch", "Coordinator epoch", "Last sequence", "Last record")
    print_table(
        [Column(title) for title in (*titles, "Start offset")],
        [
            [
                *place,
                each.producer_id,
                each.epoch,
                each.coordinator_epoch,
                each.last_sequence,
                moment(each.last_timestamp_ms, on_terminal=False),
                each.start_offset,
            ]
            for place, each in found
        ],
    )


def print_hanging(found: Sequence[Hanging]) -> None:
    """Print a line for each hanging transaction in each partition."""
    if output.stdout_is_terminal():
        print_table(
            [
                Name("Partition"),
                _START,
                Column("Producer", number=True),
                Column("Epoch", number=True),
                _COORDINATOR_EPOCH,
                Column("Idle", number=True),
            ],
            [
                [
                    _partition(item.topic, item.partition),
                    _id(item.start_offset),
                    _id(item.producer_id),
                    item.producer_epoch,
                    item.coordinator_epoch,
                    seconds(item.idle_seconds, on_terminal=True),
                ]
                for item in found
            ],
        )
        return
    titles = ("Topic", "Partition", "Start offset", "Producer id", "Epoch", "Coordinator epoch", "Last record", "Idle")
    print_table(
        [Column(title) for title in titles],
        [
            [
                item.topic,
                item.partition,
                item.start_offset,
                item.producer_id,
                item.producer_epoch,
                item.coordinator_epoch,
                moment(item.last_timestamp_ms, on_terminal=False),
                seconds(item.idle_seconds, on_terminal=False),
            ]
            for item in found
        ],
    )


def as_json(each: Transaction, starts: Mapping[tuple[int, Place], int] | None = None) -> dict[str, Any]:
    """Return a transaction for JSON. With `starts`, its partitions have a `start_offset`, null if unknown."""
    partitions: list[dict[str, Any]] = [{"topic": topic, "partition": partition} for topic, partition in each.places]
    if starts is not None:
        for shown, place in zip(partitions, each.places, strict=True):
            shown["start_offset"] = starts.get((each.producer_id, place))
    return {
        "transactional_id": each.transactional_id,
        "coordinator": each.coordinator,
        "producer_id": each.producer_id,
        "producer_epoch": each.producer_epoch,
        "state": each.state,
        "timeout_ms": None if each.timeout_ms == _NEVER_MS else each.timeout_ms,
        "started_ms": each.started_ms,
        "age_seconds": _age_seconds(each),
        "partitions": partitions,
    }


def _age_seconds(each: Transaction) -> float | None:
    if each.started_ms is None or not each.is_open:
        return None
    return max(clock.now_ms() - each.started_ms, 0) / 1000


def _timeout(each: Transaction) -> Cell:
    """Format a timeout: '10 min' on a terminal, '600.000' (seconds) in a pipe; None if there is no timeout."""
    if each.timeout_ms == _NEVER_MS:
        return None
    if not output.stdout_is_terminal():
        return f"{each.timeout_ms / 1000:.3f}"
    whole, rest = divmod(each.timeout_ms, 60_000)
    return f"{each.timeout_ms / 1000:g} s" if rest else f"{whole:,} min"


def _partition(topic: str, partition: int) -> str:
    """Return 'orders:3', the form that the commands accept."""
    return f"{topic}:{partition}"


def _fitted(transactional_id: str, on_terminal: bool) -> str:
    return (
        shortened(transactional_id, terminal_width() - len("Transactional id   ")) if on_terminal else transactional_id
    )


def _id(number: int) -> str:
    """Format without thousands separators, because users copy ids and start offsets into commands."""
    return str(number)
