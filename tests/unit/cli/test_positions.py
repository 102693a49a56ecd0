from datetime import UTC, datetime

from headrace.cli.positions import Position, Start, parse_moment, parse_position
from tests.support.refusals import wrong_reasons

NOW_MS = 1_795_000_000_000


def test_positions_are_parsed() -> None:
    positions = {
        "beginning": Position(Start.BEGINNING),
        "earliest": Position(Start.BEGINNING),
        "End": Position(Start.END),
        "42": Position(Start.OFFSET, 42),
        "-10": Position(Start.BEFORE_END, 10),
        "@1763719200000": Position(Start.TIME, 1_763_719_200_000),
        "15m": Position(Start.TIME, NOW_MS - 15 * 60_000),
        "2h ago": Position(Start.TIME, NOW_MS - 2 * 3_600_000),
        "1d12h": Position(Start.TIME, NOW_MS - 36 * 3_600_000),
        "1.5s": Position(Start.TIME, NOW_MS - 1500),
    }
    assert {text: parse_position(text, NOW_MS) for text in positions} == positions


def test_an_iso_time_is_local_unless_it_has_a_zone() -> None:
    expected = datetime(2026, 11, 21, 9, 30, tzinfo=UTC).timestamp() * 1000
    assert parse_moment("2026-11-21T09:30:00Z", NOW_MS) == expected
    assert parse_moment("2026-11-21T10:30:00+01:00", NOW_MS) == expected
    local = datetime(2026, 11, 21, 9, 30).astimezone()
    assert parse_moment("2026-11-21T09:30", NOW_MS) == local.timestamp() * 1000


def test_other_texts_are_refused() -> None:
    texts = ("", "yesterday", "5 minutes", "15x", "--3", "@", "@x", "²", "99999-01-01", "9" * 5000)
    reasons = dict.fromkeys(texts, "beginning, end, an offset")
    assert wrong_reasons(reasons, lambda text: parse_position(text, NOW_MS), ValueError) == {}


def test_an_offset_is_always_within_the_partition() -> None:
    offsets = {
        Position(Start.BEGINNING): 5,
        Position(Start.END): 9,
        Position(Start.OFFSET, 4): 5,
        Position(Start.OFFSET, 7): 7,
        Position(Start.OFFSET, 10): 9,
        Position(Start.BEFORE_END, 0): 9,
        Position(Start.BEFORE_END, 3): 6,
        Position(Start.BEFORE_END, 10): 5,
    }
    assert {position: position.offset(5, 9) for position in offsets} == offsets
