"""Fetch and print the history of a group."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from headrace.cli import group_calls, output
from headrace.cli.cluster import Cluster
from headrace.cli.failures import CommandError
from headrace.cli.group_layout import Name, Prose, moment, print_table, seconds
from headrace.cli.http_side import http_side
from headrace.cli.output import Cell, Column
from headrace.wording import listed

_NO_REASON: Final = "not provided"
"""The broker's text if a client gives no reason (KIP-800)."""
_VERBS: Final = {
    "joined": "joined:",
    "left": "left:",
    "timed_out": "timed out:",
    "fenced": "fenced:",
    "changed_subscription": "resubscribed:",
}
_REBALANCES: Final = [
    Column("Began"),
    Column("Took", number=True),
    Column("Gen", number=True),
    Column("Outcome"),
    Prose("Who"),
    Prose("Waited for"),
]


def timeline(cluster: Cluster, group: str, since_ms: int, now_ms: int, limit: int, http: str | None) -> dict[str, Any]:
    """Fetch the history of a group between two times from a broker's HTTP listener. Raises CommandError."""
    described = group_calls.describe_groups(cluster, [group]).get(group)
    if described is not None:
        side = http_side(cluster, described.coordinator.id, described.coordinator.host, http)
        source = f"the coordinator of group '{group}', broker {described.coordinator.id}"
    else:
        # Any broker may have been the coordinator of a deleted group.
        sides = (http_side(cluster, broker, host, http) for broker, host in cluster.brokers().items())
        side = next((item for item in sides if item is not None), None)
        source = f"any broker at {cluster.bootstrap}"
    if side is None:
        raise CommandError(
            f"the history of groups is not available from {source}",
            "Set headrace.http.listener on a Headrace broker, or give the address of its listener with --http.",
        )
    path = "/groups/timeline"
    found: dict[str, Any] | None = side.get(path, "events", group=group, **{"from": since_ms}, to=now_ms, limit=limit)
    if found is None:
        raise side.invalid(f"{path} does not exist there")
    if described is None and not found["events"]:
        raise group_calls.missing_group(cluster, group)
    return found


def print_events(events: list[dict[str, Any]]) -> None:
    on_terminal = output.stdout_is_terminal()
    name = _namer(event["member"] for event in events if event["member"])
    columns = [Column("Time"), Column("Gen", number=True), Name("Member"), Prose("Event"), Prose("Reason")]
    if not on_terminal:
        columns[2:3] = [Name("Member"), Name("Client"), Name("Host"), Name("Instance")]
    rows: list[list[Cell]] = []
    for event in events:
        member = event["member"]
        row: list[Cell] = [moment(event["time_ms"], on_terminal), event["generation"]]
        if on_terminal:
            row.append(None if member is None else name(member))
        elif member is None:
            row += [None] * 4
        else:
            row += [member["member_id"], member["client_id"], member["host"], member["instance_id"]]
        reason = event["reason"].removesuffix(_NO_REASON).removesuffix("; client reason: ")
        rows.append([*row, event["text"], reason or None])
    print_table(columns, rows)


def print_rebalances(rebalances: Sequence[Mapping[str, Any]]) -> None:
    """Print one line per rebalance: start, duration, outcome, membership changes, members waited for."""
    on_terminal = output.stdout_is_terminal()
    name = _namer(
        member
        for rebalance in rebalances
        for field in (*_VERBS, "phases")
        for found in rebalance[field]
        for member in (found["waited_for"] if field == "phases" else [found])
    )
    print_table(_REBALANCES, [_rebalance_row(rebalance, name, on_terminal) for rebalance in rebalances])


def _namer(members: Iterable[Mapping[str, Any]]) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that names members, with the host in pipes or if a name appears on several hosts."""
    hosts: dict[str, set[str]] = {}
    for member in members:
        hosts.setdefault(_name(member), set()).add(member["host"])
    is_short = output.stdout_is_terminal()

    def name(member: Mapping[str, Any]) -> str:
        found = _name(member)
        return found if is_short and len(hosts.get(found, ())) < 2 else f"{found}@{member['host']}"

    return name


def _rebalance_row(each: Mapping[str, Any], name: Callable[[Mapping[str, Any]], str], on_terminal: bool) -> list[Cell]:
    changes = "; ".join(
        f"{verb} {listed(map(name, each[field]), len(each[field]))}" for field, verb in _VERBS.items() if each[field]
    )
    waited = "; ".join(
        f"{name(member)} {seconds(member['ms'] / 1000, on_terminal)} ({phase['phase']})"
        for phase in each["phases"]
        for member in phase["waited_for"][:3]
        if member["ms"]
    )
    duration_ms = each["ms"]
    return [
        moment(each["started_ms"], on_terminal),
        seconds(None if duration_ms is None else duration_ms / 1000, on_terminal),
        each["generation"],
        each["outcome"],
        changes or each["reason"],
        waited or None,
    ]


def _name(member: Mapping[str, Any]) -> str:
    return str(member["instance_id"] or member["client_id"] or member["member_id"])
