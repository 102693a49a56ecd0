"""Print a cluster: tables on a terminal, tab-separated blocks in a pipe, an object for JSON."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headrace.cli import output
from headrace.cli.group_layout import Name, print_table, terminal_width
from headrace.cli.output import Cell, Column
from headrace.cli.placement.state import PROBLEMS, Partition, State, total

_MOST_ROWS = 20
"""Maximum number of partitions with problems, and of reassignments, shown on a terminal."""


def print_state(state: State) -> None:
    """Print the summary, the brokers, partitions with problems, and reassignments in progress."""
    output.print_pairs(_summary(state))
    output.write_lines("")
    _print_brokers(state)
    lacking = [partition for problem in PROBLEMS for partition in state.with_problem(problem)]
    if lacking:
        output.write_lines("")
        _print_lacking(lacking)
    if state.moving:
        output.write_lines("")
        print_moving(state, state.moving)


def as_json(state: State) -> dict[str, Any]:
    """Convert the cluster for JSON, with all partitions."""
    led, hosted = _leads(state), _hosts(state)
    return {
        "cluster_id": state.cluster_id,
        "healthy": state.is_healthy,
        "controller": state.controller,
        "controller_epoch": state.controller_epoch,
        "offline": len(state.with_problem(PROBLEMS[0])),
        "under_min_isr": len(state.with_problem(PROBLEMS[1])),
        "under_replicated": len(state.with_problem(PROBLEMS[2])),
        "brokers": [
            {
                "id": number,
                "alive": number in state.brokers,
                "address": broker.address if broker else None,
                "rack": broker.rack if broker else None,
                "partitions_led": led[number],
                "partitions_hosted": hosted[number],
                "disk": asdict(broker.disk) if broker and broker.disk else None,
            }
            for number in _all_brokers(state)
            for broker in (state.brokers.get(number),)
        ],
        "partitions": [_partition_json(state, partition) for partition in state.partitions.values()],
        "moves": moving_json(state, state.moving),
    }


def moving_json(state: State, moving: Sequence[Partition]) -> list[dict[str, Any]]:
    return [
        {
            "topic": partition.topic,
            "partition": partition.number,
            "replicas": list(partition.replicas),
            "adding": list(partition.adding),
            "removing": list(partition.removing),
            "bytes_copied": state.bytes_copied(partition),
            "bytes_left": state.bytes_left(partition),
        }
        for partition in moving
    ]


def print_moving(state: State, moving: Sequence[Partition]) -> None:
    on_terminal = output.stdout_is_terminal()
    rows: list[list[Cell]] = [
        [
            _named(partition),
            ids(partition.original),
            ids(partition.target),
            ids([broker for broker in partition.adding if broker not in partition.isr]) or None,
            _size(state.bytes_copied(partition)),
            _size(state.bytes_left(partition)),
        ]
        for partition in moving
    ]
    columns = [
        Name("Moving"),
        Column("From"),
        Column("To"),
        Column("Copying to"),
        Column("Copied", number=True),
        Column("Left", number=True),
    ]
    shown = rows[:_MOST_ROWS] if on_terminal else rows
    print_table(columns, shown)
    _print_rest(len(rows) - len(shown), "move")


def ids(brokers: Sequence[int]) -> str:
    """Format broker ids: '1,2,3'."""
    return ",".join(map(str, brokers))


def _summary(state: State) -> list[tuple[str, Cell]]:
    replicas = sum(len(partition.replicas) for partition in state.partitions.values())
    topics = len({partition.topic for partition in state.partitions.values()})
    controller: Cell = None if state.controller is None else f"broker {state.controller}"
    if state.controller_epoch is not None:
        # In KRaft mode, brokers name any broker as the controller.
        controller = f"quorum, epoch {state.controller_epoch}"
    partitions = output.count(len(state.partitions), "partition")
    return [
        ("Cluster", state.cluster_id),
        ("Controller", controller or "none"),
        ("Topics", f"{output.count(topics, 'topic')}, {partitions}, {output.count(replicas, 'replica')}"),
        ("Health", _folded(_health(state), "Controller   ")),
    ]


def _health(state: State) -> str:
    found = [] if state.controller is not None else ["no controller"]
    if missing := state.missing_brokers:
        found.append(f"{'broker' if len(missing) == 1 else 'brokers'} {ids(missing)} missing")
    numbers = {problem: len(state.with_problem(problem)) for problem in PROBLEMS}
    found += [f"{output.count(number, 'partition')} {problem}" for problem, number in numbers.items() if number]
    if not found:
        found.append("all replicas in sync")
    if state.moving:
        left = total([state.bytes_left(partition) for partition in state.moving])
        rest = "" if left is None else f" ({output.size(left)} left)"
        found.append(f"{output.count(len(state.moving), 'partition')} moving{rest}")
    return ", ".join(found)


def _folded(text: str, before: str) -> str:
    """Wrap between words on a terminal, and indent continuation lines by the width of `before`."""
    if not output.stdout_is_terminal():
        return text
    lines = textwrap.wrap(text, max(terminal_width() - len(before), 20), break_on_hyphens=False)
    return output.Lines(("\n" + " " * len(before)).join(lines))


def _print_brokers(state: State) -> None:
    led, hosted = _leads(state), _hosts(state)
    # As in the problems of partitions, replicas that a reassignment adds need not be in sync.
    lagging = Counter(
        broker
        for partition in state.partitions.values()
        for broker in set(partition.replicas) - set(partition.isr) - set(partition.adding)
    )
    rows: list[list[Cell]] = []
    for number in _all_brokers(state):
        broker = state.brokers.get(number)
        disk = broker.disk if broker else None
        rows.append(
            [
                str(number),
                broker.address if broker else "not alive",
                broker.rack if broker else None,
                led[number],
                hosted[number],
                lagging[number],
                _size(disk.used if disk else None),
                _size(disk.free if disk else None),
            ]
        )
    print_table(
        [
            Column("Broker", number=True),
            Name("Address"),
            Name("Rack"),
            Column("Leads", number=True),
            Column("Hosts", number=True),
            Column("Not in ISR", number=True),
            Column("Used", number=True),
            Column("Free", number=True),
        ],
        rows,
    )


def _print_lacking(lacking: Sequence[Partition]) -> None:
    shown = lacking[:_MOST_ROWS] if output.stdout_is_terminal() else lacking
    print_table(
        [
            Name("Partition"),
            Column("Problem"),
            Column("Leader", number=True),
            Column("Epoch", number=True),
            Column("Replicas"),
            Column("ISR"),
            Column("Min ISR", number=True),
        ],
        [
            [
                _named(partition),
                partition.problem,
                None if partition.leader is None else str(partition.leader),
                partition.leader_epoch,
                ids(partition.replicas),
                ids(partition.isr) or None,
                partition.min_isr,
            ]
            for partition in shown
        ],
    )
    _print_rest(len(lacking) - len(shown), "partition")


def _print_rest(number: int, noun: str) -> None:
    if number:
        output.write_lines(f"and {output.count(number, f'more {noun}')}; --json prints all")


def _partition_json(state: State, partition: Partition) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.number,
        "problem": partition.problem,
        "leader": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replicas": list(partition.replicas),
        "isr": list(partition.isr),
        "size": state.size(partition.place),
    }


def _all_brokers(state: State) -> list[int]:
    return sorted({*state.brokers, *state.missing_brokers})


def _leads(state: State) -> Counter[int]:
    return Counter(partition.leader for partition in state.partitions.values() if partition.leader is not None)


def _hosts(state: State) -> Counter[int]:
    return Counter(broker for partition in state.partitions.values() for broker in partition.replicas)


def _named(partition: Partition) -> str:
    return f"{partition.topic}:{partition.number}"


def _size(size: int | None) -> Cell:
    return output.size(size) if size is not None and output.stdout_is_terminal() else size
