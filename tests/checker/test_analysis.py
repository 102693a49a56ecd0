"""Valid histories, and histories with one anomaly of every kind."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.checker.analysis import Kind, analyse
from tests.checker.history import End, History, Outcome, Partition, Read, Source, Start, Transaction

LEFT, RIGHT = Partition("in", 0), Partition("in", 1)
COPY = Partition("out", 0)


def transaction(
    number: int,
    *values: tuple[Partition, str],
    outcome: Outcome = Outcome.COMMITTED,
    incarnation: int = 0,
    commit_requested: int = 100,
    producer: str = "a",
    sources: Sequence[Source] = (),
) -> Transaction:
    return Transaction(
        producer=producer,
        incarnation=incarnation,
        number=number,
        records=values,
        sources=sources,
        outcome=outcome,
        commit_requested=commit_requested,
    )


def end(*records: tuple[int, str], stable: int | None = None) -> End:
    high_watermark = max((offset for offset, _ in records), default=-1) + 2  # after the marker
    return End(records=records, stable=high_watermark if stable is None else stable, high_watermark=high_watermark)


def read(offset: int, value: str, *, partition: Partition = LEFT, time: int = 200, reader: str = "r") -> Read:
    return Read(reader=reader, time=time, partition=partition, offset=offset, value=value)


def kinds(history: History) -> set[Kind]:
    return {anomaly.kind for anomaly in analyse(history)}


VALID = History(
    transactions=[
        transaction(0, (LEFT, "a0"), (RIGHT, "a0'")),
        transaction(1, (LEFT, "a1"), outcome=Outcome.ABORTED),
        transaction(2, (LEFT, "a2"), outcome=Outcome.UNKNOWN),
        transaction(3, (RIGHT, "a3"), outcome=Outcome.UNKNOWN),
        transaction(4, (LEFT, "a4")),
    ],
    final={LEFT: end((0, "a0"), (4, "a2"), (6, "a4")), RIGHT: end((0, "a0'"))},
    reads=[read(0, "a0"), read(4, "a2"), read(6, "a4"), read(0, "a0", reader="s")],
    starts=[Start(producer="a", incarnation=0, requested=1, time=2)],
)

SUCCESSOR = Start(producer="a", incarnation=1, requested=50, time=60)


def test_a_valid_history_has_no_anomalies() -> None:
    assert analyse(VALID) == []


def test_concurrent_starts_may_fence_each_other_in_either_order() -> None:
    """The incarnation with the higher number may have started earlier."""
    history = History(
        transactions=[transaction(0, (LEFT, "a")), transaction(0, (LEFT, "b"), incarnation=1)],
        starts=[
            Start(producer="a", incarnation=0, requested=1, time=20),
            Start(producer="a", incarnation=1, requested=10, time=15),
        ],
        final={LEFT: end((0, "b"), (2, "a"))},
    )
    assert analyse(history) == []


def changed(**parts: object) -> History:
    return replace(VALID, **parts)  # type: ignore[arg-type]


INVALID = {
    "a committed record is missing": (
        changed(final={**VALID.final, LEFT: end((0, "a0"), (4, "a2"))}, reads=[]),
        {Kind.LOST_WRITE},
    ),
    "an aborted record is present": (
        changed(final={**VALID.final, LEFT: end((0, "a0"), (2, "a1"), (4, "a2"), (6, "a4"))}, reads=[]),
        {Kind.ABORTED_READ},
    ),
    "a reader gets an aborted record": (changed(reads=[read(0, "a0"), read(2, "a1")]), {Kind.ABORTED_READ}),
    "a reader gets a record before its commit": (changed(reads=[read(0, "a0", time=50)]), {Kind.DIRTY_READ}),
    "a reader gets a record that is lost": (
        changed(reads=[read(0, "a3", partition=RIGHT)], final={**VALID.final, RIGHT: end((2, "a0'"))}),
        {Kind.DIRTY_READ},
    ),
    "half of an unknown transaction is present": (
        History(
            transactions=[transaction(0, (LEFT, "a0"), (RIGHT, "a0'"), outcome=Outcome.UNKNOWN)],
            final={LEFT: end((0, "a0")), RIGHT: end()},
        ),
        {Kind.SPLIT_TRANSACTION},
    ),
    "half of a committed transaction is present": (
        changed(final={**VALID.final, RIGHT: end()}),
        {Kind.LOST_WRITE, Kind.SPLIT_TRANSACTION},
    ),
    "a record is present twice": (
        changed(final={**VALID.final, RIGHT: end((0, "a0'"), (1, "a0'"))}),
        {Kind.DUPLICATE},
    ),
    "a reader gets a record from two offsets": (
        changed(reads=[read(0, "a0"), read(1, "a0")]),
        {Kind.DUPLICATE},
    ),
    "transactions are in another order": (
        changed(final={**VALID.final, LEFT: end((0, "a0"), (4, "a4"), (6, "a2"))}, reads=[]),
        {Kind.REORDERED},
    ),
    "records of a transaction are in another order": (
        History(
            transactions=[transaction(0, (LEFT, "a0"), (LEFT, "a1"))],
            final={LEFT: end((0, "a1"), (1, "a0"))},
        ),
        {Kind.REORDERED},
    ),
    "a record of an older incarnation comes after the newer's": (
        History(
            transactions=[transaction(0, (LEFT, "b"), incarnation=1), transaction(0, (LEFT, "a"), commit_requested=55)],
            starts=[*VALID.starts, SUCCESSOR],
            final={LEFT: end((0, "b"), (2, "a"))},
        ),
        {Kind.REORDERED},
    ),
    "a poll goes backwards": (
        changed(reads=[read(0, "a0"), read(4, "a2"), read(0, "a0"), read(4, "a2")]),
        {Kind.BACKWARDS},
    ),
    "a reader misses a record": (changed(reads=[read(0, "a0"), read(6, "a4")]), {Kind.SKIPPED}),
    "an offset changes its value": (
        changed(reads=[read(0, "a0"), read(4, "a2"), read(6, "a4"), read(0, "a4", reader="s")]),
        {Kind.REWRITTEN, Kind.DUPLICATE},
    ),
    "a record has no sender": (changed(reads=[read(0, "a0"), read(1, "?")]), {Kind.UNKNOWN_VALUE}),
    "a record is in another partition": (
        changed(final={**VALID.final, RIGHT: end((0, "a0'"), (2, "a4"))}, reads=[]),
        {Kind.UNKNOWN_VALUE, Kind.DUPLICATE},
    ),
    "a producer commits after its successor's start": (
        changed(starts=[*VALID.starts, SUCCESSOR]),
        {Kind.NOT_FENCED},
    ),
    "a partition's end is unreadable": (
        changed(final={**VALID.final, RIGHT: end((0, "a0'"), stable=1)}),
        {Kind.HANGING},
    ),
}


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID)
def test_only_the_anomaly_is_found(case: tuple[History, set[Kind]]) -> None:
    history, expected = case
    assert kinds(history) == expected


def copies(*done: tuple[int, str, Outcome], found: Sequence[tuple[int, str]]) -> History:
    """Return a history in which `done`, one transaction per record, copies `a0` and `a1`."""
    return History(
        transactions=[
            transaction(0, (LEFT, "a0"), (LEFT, "a1")),
            *(
                transaction(number, (COPY, value), producer="c", sources=[Source(0, offset)], outcome=outcome)
                for number, (offset, value, outcome) in enumerate(done)
            ),
        ],
        final={LEFT: end((0, "a0"), (1, "a1")), COPY: end(*found)},
        copied={"in": "out"},
    )


C, A = Outcome.COMMITTED, Outcome.ABORTED


def test_complete_copies_have_no_anomalies() -> None:
    history = copies((0, "c0 a0", A), (0, "c1 a0", C), (1, "c2 a1", C), found=[(2, "c1 a0"), (4, "c2 a1")])
    assert analyse(history) == []


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param(copies((0, "c0 a0", C), found=[(0, "c0 a0")]), {Kind.LOST_COPY}, id="lost"),
        pytest.param(
            copies(
                (0, "c0 a0", C),
                (0, "c1 a0", C),
                (1, "c2 a1", C),
                found=[(0, "c0 a0"), (2, "c1 a0"), (4, "c2 a1")],
            ),
            {Kind.COPIED_TWICE},
            id="twice",
        ),
        pytest.param(
            copies((0, "c0 a1", C), (1, "c2 a1", C), found=[(0, "c0 a1"), (2, "c2 a1")]), {Kind.WRONG_COPY}, id="wrong"
        ),
    ],
)
def test_incomplete_copies(history: History, expected: set[Kind]) -> None:
    assert kinds(history) == expected
