"""JSON routes about groups: list, details, samples, timeline (docs/watching-groups.md)."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import fields
from http import HTTPStatus
from operator import itemgetter
from typing import Any, Final

from headrace.clock import now_ms
from headrace.coordinator.groups.group import Group
from headrace.errors import ErrorCode, KafkaError
from headrace.monitoring.groups.points import Wanted, series_of
from headrace.monitoring.groups.rebalances import event_json, timeline_of
from headrace.monitoring.groups.recorder import GroupHistory
from headrace.monitoring.groups.standing import Standing, Total, combined, total_of
from headrace.monitoring.http import HttpError, HttpServer, Query
from headrace.slices import Steps, chunks, finish

HOUR_MS: Final = 3_600_000
MAX_EVENTS: Final = 5000
_DEFAULT_EVENTS: Final = 500
_PARTITIONS_PER_STEP: Final = 200
_GROUPS_PER_SLICE: Final = 50
"""Number of groups to summarize before yielding to the event loop."""


class GroupRoutes:
    def __init__(self, history: GroupHistory) -> None:
        self._history = history

    def add_to(self, http: HttpServer) -> None:
        http.add_json("/groups", self.groups)
        http.add_json("/groups/describe", self.describe)
        http.add_json("/groups/history", self.history)
        http.add_json("/groups/timeline", self.timeline)

    async def groups(self, query: Query) -> object:
        """List all groups, as of the latest sample."""
        _check(query, {"state", "type"})
        states, types = (
            {item.lower() for item in query.get(name, "").split(",") if item} for name in ("state", "type")
        )
        now = now_ms()
        found = []
        for place, (group, _) in enumerate(self._history.coordinator.groups_with_offsets()):
            if place % _GROUPS_PER_SLICE == 0:
                await asyncio.sleep(0)
            if (not states or group.state.lower() in states) and (not types or group.type in types):
                found.append(self._summary(group, self._history.sampler.totals(group.group_id), now))
        return {"time_ms": now, "assumed_reset": self._history.sampler.assumed_reset, "groups": found}

    async def describe(self, query: Query) -> object:
        """Return the current state of one group: members, and progress in all partitions."""
        _check(query, {"group"})
        group = self._group(query)
        await self._history.refresh(group)
        now = now_ms()
        standings = self._history.sampler.standings(group.group_id, now)
        members, owners = await finish(_members(group))
        totals, partitions = await finish(_partitions(standings, owners, now))
        return {
            "time_ms": now,
            "assumed_reset": self._history.sampler.assumed_reset,
            **self._summary(group, totals, now),
            "member_list": members,
            "partitions": partitions,
        }

    async def history(self, query: Query) -> object:
        """Return the samples of a group between two times."""
        _check(query, {"group", "topic", "partition", "from", "to"})
        group_id = _required(query, "group")
        start, end = _time_range(query)
        partition = _number(query, "partition", 0) if "partition" in query else None
        wanted = Wanted(group_id, query.get("topic"), partition, start, end)
        series = await self._history.steps_in_thread(series_of(self._history.store, wanted))
        return {
            "group": group_id,
            "from_ms": start,
            "to_ms": end,
            "assumed_reset": self._history.sampler.assumed_reset,
            "columns": ["time_ms", "committed", "end", "lag", "lag_seconds", "pace", "counted_from"],
            "series": series,
        }

    async def timeline(self, query: Query) -> object:
        """Return the latest events of a group between two times, and the rebalances that they form."""
        _check(query, {"group", "from", "to", "limit"})
        group_id = _required(query, "group")
        start, end = _time_range(query)
        limit = _number(query, "limit", _DEFAULT_EVENTS)
        if not 1 <= limit <= MAX_EVENTS:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"limit must be from 1 to {MAX_EVENTS}")
        await self._history.flush()

        def read() -> dict[str, Any]:
            events = self._history.store.events(group_id, start, end, limit)
            timeline = timeline_of(events)
            return {
                "group": group_id,
                "from_ms": start,
                "to_ms": end,
                "events": [event_json(event, timeline.clients) for event in events],
                "rebalances": timeline.as_json(),
            }

        return await self._history.in_thread(read)

    def _group(self, query: Query) -> Group:
        group_id = _required(query, "group")
        try:
            return self._history.coordinator.group(group_id)
        except KafkaError as error:
            if error.code is not ErrorCode.group_id_not_found:
                raise
            raise HttpError(
                HTTPStatus.NOT_FOUND, f"group {group_id} does not exist; /groups lists all groups"
            ) from None

    def _summary(self, group: Group, totals: Mapping[str, Total], now: int) -> dict[str, Any]:
        return {
            "group": group.group_id,
            "type": str(group.type),
            "state": str(group.state),
            "protocol_type": group.protocol_type or "",
            "members": group.size,
            "topics": sorted(totals),
            "rebalances": self._history.rebalances.get(group.group_id, 0),
            **_totals(combined(list(totals.values())), now),
        }


def _members(group: Group) -> Steps[tuple[list[dict[str, Any]], dict[tuple[str, int], str]]]:
    """Return the members, and the member that owns each partition."""
    members: list[dict[str, Any]] = []
    owners: dict[tuple[str, int], str] = {}
    for member in group.members_seen():
        yield
        members.append({item.name: getattr(member, item.name) for item in fields(member)})
        for topic, partitions in member.partitions.items():
            for some in chunks(partitions, _PARTITIONS_PER_STEP):
                yield
                owners.update(((topic, partition), member.member_id) for partition in some)
    return members, owners


def _partitions(
    standings: Mapping[str, Iterable[Standing]], owners: Mapping[tuple[str, int], str], now: int
) -> Steps[tuple[dict[str, Total], list[dict[str, Any]]]]:
    """Return the total of each topic, and the progress in each partition."""
    totals: dict[str, Total] = {}
    rows: list[dict[str, Any]] = []
    for topic, found in sorted(standings.items(), key=itemgetter(0)):
        parts = []
        for some in chunks(found, _PARTITIONS_PER_STEP):
            parts.append(total_of(some))
            rows += (
                {"topic": topic, **_standing(standing, now), "member_id": owners.get((topic, standing.partition))}
                for standing in some
            )
            yield
        totals[topic] = combined(parts) if parts else Total()
    return totals, rows


def _totals(total: Total, now: int) -> dict[str, Any]:
    return {
        "lag": total.lag,
        "lag_seconds": total.lag_seconds(now),
        "pace": _rounded(total.pace),
        "arrival": _rounded(total.arrival),
        "trend": str(total.trend),
        "catches_up_in_seconds": _rounded(total.catches_up_in),
        "partitions_not_committed": total.not_committed,
        "partitions_unmeasured": total.unmeasured,
    }


def _standing(standing: Standing, now: int) -> dict[str, Any]:
    known = standing.end >= 0
    return {
        "partition": standing.partition,
        "committed": standing.committed if standing.is_committed else None,
        "counted_from": standing.position,
        "start": standing.start if known else None,
        "end": standing.end if known else None,
        "lag": standing.lag,
        "lag_seconds": standing.lag_seconds(now),
        "lost": max(standing.start - standing.position, 0) if known else None,
        "pace": _rounded(standing.pace),
        "arrival": _rounded(standing.arrival),
        "trend": str(standing.trend),
        "catches_up_in_seconds": _rounded(standing.catches_up_in),
    }


def _time_range(query: Query) -> tuple[int, int]:
    end = _number(query, "to", now_ms())
    start = _number(query, "from", end - HOUR_MS)
    if start > end:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"'from' ({start}) is later than 'to' ({end})")
    return start, end


def _required(query: Query, name: str) -> str:
    value = query.get(name)
    if not value:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the parameter {name} is required, for example ?{name}=my-{name}")
    return value


def _number(query: Query, name: str, otherwise: int) -> int:
    text = query.get(name)
    if text is None:
        return otherwise
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{name} must be a whole number, not '{text}'; times are in ms")
    return int(text)


def _check(query: Query, known: set[str]) -> None:
    for name in query:
        if name not in known:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"unknown parameter '{name}'; known: {', '.join(sorted(known))}")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
