import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from headrace.cli.cell_text import shortened
from headrace.cli.group_layout import Name, Prose, fitted, moment
from headrace.cli.output import Column

MEMBER = "settlement-service-7f9c6d5b8-x2k2p-9b9d1731-c9b4-49e4-aec9-acf4cfb0c88e"
COLUMNS = [Column("Time"), Column("Gen", number=True), Name("Member"), Prose("Event"), Prose("Reason")]


def test_a_long_name_loses_its_middle() -> None:
    assert shortened("settlement-service-4", 12) == "settle…ice-4"
    assert shortened("short", 5) == "short"
    assert [len(shortened(MEMBER, width)) for width in (1, 2, 3, 40)] == [1, 2, 3, 40]


def test_a_table_that_fits_is_unchanged() -> None:
    rows: list[list[str | int | None]] = [["09:30:00", 1, "app", "joined", "not provided"]]
    assert fitted(COLUMNS, rows, 80) == rows


def test_a_name_with_a_line_feed_looks_like_one_row() -> None:
    assert fitted([Name("Group"), Column("State")], [["a\nb\x1b", "Stable"]], 80) == [["a\\nb\\x1b", "Stable"]]


@pytest.mark.parametrize("name", ["a" + "\u200b" * 15 + "b", "\u202e" * 9, "日本語" * 6, "x日本語" * 6, "e\u0301" * 30])
def test_wide_and_invisible_characters_are_measured_as_they_are_shown(name: str) -> None:
    state = Column("State")
    for width in (20, 33, 34):
        [[shown, _]] = fitted([Name("Group"), state], [[name, "Stable"]], width)
        assert cell_len(str(shown)) <= width - len("   Stable")
        assert str(shown).isprintable()
        [[shown, _]] = fitted([Prose("Reason"), state], [[f"member {name} joined {name}, {name}", "Stable"]], width)
        assert max(cell_len(line) for line in str(shown).split("\n")) <= width - len("   Stable")


def test_sentences_wrap_between_words_and_their_ids_are_shortened() -> None:
    [[time, generation, member, event, reason]] = fitted(
        COLUMNS, [["09:30:00", 1, MEMBER, "is preparing to rebalance", f"adding member {MEMBER}; it said so"]], 80
    )
    assert (time, generation, event) == ("09:30:00", 1, "is preparing to\nrebalance")
    assert member == shortened(MEMBER, len(str(member)))
    assert [re.sub(r"\w+-?\w*…[\w-]+", "ID", line) for line in str(reason).splitlines()] == [
        "adding member",
        "ID;",
        "it said so",
    ]


def test_a_time_after_the_year_9999_is_in_milliseconds() -> None:
    assert {moment(1_763_719_200_123_000, on_terminal) for on_terminal in (True, False)} == {"1763719200123000"}


texts = st.text("ab-. ,", max_size=60)


@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=4), st.integers(60, 200))
@example(rows=[("", "aaaaaaaa", "aaaaaaaaaaaaaaaa,,")], width=60)
def test_a_table_is_never_wider_than_the_terminal(rows: list[tuple[str, str, str]], width: int) -> None:
    shown = fitted(COLUMNS, [["11-22 09:30:00", 4, *row] for row in rows], width)
    widths = [max(len(line) for row in shown for line in f"{row[place]}\n".splitlines()) for place in range(5)]
    assert sum(max(found, len(column.title)) for found, column in zip(widths, COLUMNS, strict=True)) + 12 <= width
    for row, before in zip(shown, rows, strict=True):
        for cell, text in zip(row[2:], before, strict=True):
            for piece in str(cell).split():
                assert "…" in piece or piece in text.split()
