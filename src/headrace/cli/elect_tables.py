"""Print elections: a table on a terminal, tab-separated lines in a pipe, objects for JSON."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headrace.cli import output
from headrace.cli.group_layout import Name, Prose, print_table
from headrace.cli.output import Column
from headrace.cli.placement.elections import ELECTED, IMPOSSIBLE, NOT_NEEDED, POSSIBLE, Election


def print_elections(elections: Sequence[Election]) -> None:
    print_table(
        [
            Name("Partition"),
            Column("Leader", number=True),
            Column("New leader", number=True),
            Column("Election"),
            Prose("Reason"),
        ],
        [
            [f"{one.place[0]}:{one.place[1]}", _broker(one.before), _broker(one.after), one.state, one.reason]
            for one in elections
        ],
    )


def as_json(elections: Sequence[Election]) -> list[dict[str, Any]]:
    return [
        {
            "topic": one.place[0],
            "partition": one.place[1],
            "leader_before": one.before,
            "leader": one.after,
            "election": one.state,
            "reason": one.reason,
        }
        for one in elections
    ]


def preview_summary(elections: Sequence[Election], *, unclean: bool) -> str:
    count = Counter(one.state for one in elections)
    if not count[POSSIBLE] and not count[IMPOSSIBLE]:
        rest = "with a leader" if unclean else "led by their preferred replicas"
        return f"No election is needed ({output.count(len(elections), 'partition')}, all {rest})."
    impossible = f"; {count[IMPOSSIBLE]:,} impossible" if count[IMPOSSIBLE] else ""
    text = f"{output.count(count[POSSIBLE], 'election')} possible{impossible}. Nothing was changed."
    return f"{text} Add --execute to elect these leaders." if count[POSSIBLE] else text


def result_summary(elections: Sequence[Election]) -> str:
    count = Counter(one.state for one in elections)
    failed = len(elections) - count[ELECTED] - count[NOT_NEEDED]
    parts = [
        f"Elected the leaders of {output.count(count[ELECTED], 'partition')}" if count[ELECTED] else "No leader changed"
    ]
    if count[NOT_NEEDED]:
        parts.append(f"{count[NOT_NEEDED]:,} did not need an election")
    if failed:
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


def _broker(number: int | None) -> str | None:
    return None if number is None else str(number)
