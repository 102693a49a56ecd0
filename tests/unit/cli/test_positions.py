from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.positions import Position, Start, parse_moment, parse_position

NOW_MS = 1_795_000_000_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position(Start.BEGINNING)),
        ("earliest", Position(Start.BEGINNING)),
        ("End", Position(Start.END)),
        ("42", Position(Start.OFFSET, 42)),
        ("-10", Position(Start.BEFORE_END, 10)),
        ("@1763719200000", Position(Start.TIME, 1_763_719_200_000)),
        ("15m", Position(Start.TIME, NOW_MS - 15 * 60_000)),
        ("2h ago", Position(Start.TIME, NOW_MS - 2 * 3_600_000)),
        ("1d12h", Position(Start.TIME, NOW_MS - 36 * 3_600_000)),
        ("1.5s", Position(Start.TIME, NOW_MS - 1500)),
    ],
)
def test_positions_are_parsed(text: str, position: Position) -> None:
    assert parse_position(text, NOW_MS) == position


def test_an_iso_time_may_have_a_zone() -> None:
    expected = datetime(2026, 11, 21, 9, 30, tzinfo=UTC).timestamp() * 1000
    assert parse_moment("2026-11-21T09:30:00Z", NOW_MS) == expected
    assert parse_moment("2026-11-21T10:30:00+01:00", NOW_MS) == expected


def test_an_iso_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 11, 21, 9, 30).astimezone()
    assert parse_moment("2026-11-21T09:30", NOW_MS) == local.timestamp() * 1000


@pytest.mark.parametrize("text", ["", "yesterday", "5 minutes", "15x", "--3", "@", "@x", "²", "99999-01-01"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"an ISO|beginning, end, an offset"):
        parse_position(text, NOW_MS)


@given(st.integers(0, 10**12), st.integers(0, 10**12), st.integers(0, 10**12))
def test_an_offset_is_always_within_the_partition(number: int, earliest: int, length: int) -> None:
    latest = earliest + length
    for start in (Start.BEGINNING, Start.END, Start.OFFSET, Start.BEFORE_END):
        offset = Position(start, number).offset(earliest, latest)
        assert offset is not None
        assert earliest <= offset <= latest
