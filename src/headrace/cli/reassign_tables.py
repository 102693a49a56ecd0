"""Print plans of moves and their outcomes, as tables or tab-separated blocks, or convert them for JSON."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from headrace.cli import output
from headrace.cli.group_layout import Name, print_table
from headrace.cli.output import Cell, Column
from headrace.cli.overview_tables import ids
from headrace.cli.placement import kafka_json
from headrace.cli.placement.execution import DIFFERENT, DONE, Outcome
from headrace.cli.placement.plan import Move
from headrace.cli.placement.requests import Refusal
from headrace.cli.placement.state import Place, State, total

_MOST_ROWS = 20


def print_moves(state: State, moves: Sequence[Move]) -> None:
    """Print the number of replicas on every broker before and after the moves, then the moves."""
    _print_brokers(state, moves)
    output.write_lines("")
    shown = moves[:_MOST_ROWS] if output.stdout_is_terminal() else moves
    print_table(
        [Name("Partition"), Column("From"), Column("To"), Column("New on"), Column("To copy", number=True)],
        [
            [
                named(move.place),
                ids(move.before),
                ids(move.after),
                ids(move.added) or None,
                size(move.bytes) if move.added else None,
            ]
            for move in shown
        ],
    )
    if len(shown) < len(moves):
        output.write_lines(f"and {output.count(len(moves) - len(shown), 'more partition')}; --json prints all")


def summary(moves: Sequence[Move]) -> str:
    """Sum up the moves in a phrase, such as '4 replicas of 3 partitions to copy (1.2 GB)'."""
    copied = [move for move in moves if move.added]
    parts = []
    if copied:
        replicas = output.count(sum(len(move.added) for move in copied), "replica")
        number = total([move.bytes for move in copied])
        parts.append(
            f"{replicas} of {output.count(len(copied), 'partition')} to copy"
            f" ({'size unknown' if number is None else output.size(number)})"
        )
    dropped = sum(1 for move in moves if move.removed and not move.added)
    if dropped:
        parts.append(f"{output.count(dropped, 'partition')} with fewer replicas")
    reordered = len(moves) - len(copied) - dropped
    if reordered:
        parts.append(f"{output.count(reordered, 'partition')} with only a new preferred leader")
    return ", ".join(parts) or "nothing to move"


def moves_json(moves: Sequence[Move]) -> dict[str, Any]:
    """Convert the moves for JSON, with plans in Kafka's format for the moves and for undoing them."""
    return {
        "bytes": total([move.bytes for move in moves]),
        "moves": [
            {
                "topic": move.topic,
                "partition": move.partition,
                "from": list(move.before),
                "to": list(move.after),
                "added": list(move.added),
                "removed": list(move.removed),
                "bytes": move.bytes,
            }
            for move in moves
        ],
        "plan": json.loads(kafka_json.written({move.place: move.after for move in moves})),
        "reverse": json.loads(kafka_json.written({move.place: move.before for move in moves})),
    }


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print the partitions of a plan that are not done; in a pipe, all partitions."""
    shown = [one for one in outcomes if one.state != DONE] if output.stdout_is_terminal() else outcomes
    if shown:
        print_table(
            [Name("Partition"), Column("State"), Column("Wanted"), Column("Replicas")],
            [[named(one.place), one.state, ids(one.wanted), ids(one.replicas) or None] for one in shown],
        )


def outcomes_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    return [
        {
            "topic": one.place[0],
            "partition": one.place[1],
            "state": one.state,
            "wanted": list(one.wanted),
            "replicas": list(one.replicas),
        }
        for one in outcomes
    ]


def outcome_summary(outcomes: Sequence[Outcome]) -> str:
    """Return a text like '3 partitions done, 1 still moving'."""
    count = Counter(one.state for one in outcomes)
    parts = [f"{output.count(count[DONE], 'partition')} done"]
    moving = len(outcomes) - count[DONE] - count[DIFFERENT]
    if moving:
        parts.append(f"{moving:,} still moving")
    if count[DIFFERENT]:
        parts.append(f"{count[DIFFERENT]:,} with other replicas and not moving")
    return ", ".join(parts)


def refusals_json(refused: Mapping[Place, Refusal]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": partition, "error": error.name, "message": error.description}
        for (topic, partition), error in sorted(refused.items())
    ]


def named(place: Place) -> str:
    """Return 'orders:3', the form that the commands accept."""
    return f"{place[0]}:{place[1]}"


def size(number: int | None) -> Cell:
    return output.size(number) if number is not None and output.stdout_is_terminal() else number


def _print_brokers(state: State, moves: Sequence[Move]) -> None:
    after = {move.place: move.after for move in moves}
    now, then = Counter[int](), Counter[int]()
    preferred_now, preferred_then = Counter[int](), Counter[int]()
    for partition in state.partitions.values():
        wanted = after.get(partition.place, partition.replicas)
        now.update(partition.replicas)
        then.update(wanted)
        preferred_now[partition.replicas[0]] += 1
        preferred_then[wanted[0]] += 1
    rows: list[list[Cell]] = []
    for broker in _all(state, moves):
        found = state.brokers.get(broker)
        arriving = [move for move in moves if broker in move.added]
        rows.append(
            [
                str(broker),
                found.rack if found else None,
                now[broker],
                then[broker],
                preferred_now[broker],
                preferred_then[broker],
                len(arriving),
                size(total([move.size for move in arriving])),
                sum(1 for move in moves if broker in move.removed),
            ]
        )
    print_table(
        [
            Column("Broker", number=True),
            Name("Rack"),
            Column("Replicas", number=True),
            Column("After", number=True),
            Column("Preferred", number=True),
            Column("After", number=True),
            Column("New", number=True),
            Column("To copy", number=True),
            Column("Removed", number=True),
        ],
        rows,
    )


def _all(state: State, moves: Sequence[Move]) -> Collection[int]:
    return sorted({*state.brokers, *state.hosts, *(broker for move in moves for broker in move.after)})
