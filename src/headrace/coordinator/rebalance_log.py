"""Log a line for every completed rebalance, warn of one that does not end, and log every event at DEBUG.

The group history has the details.
"""

import logging
from dataclasses import dataclass, field
from typing import Final

from headrace.coordinator.groups.effects import Happening, Note
from headrace.wording import count

log = logging.getLogger(__name__)

_BEGINS: Final = (Happening.REBALANCING, Happening.BUMPED)
_ENDS: Final = (Happening.STABLE, Happening.EMPTY)
_TIMED_OUT: Final = (Happening.TIMED_OUT, Happening.NOT_REJOINED)
_LOGGED: Final = (Happening.FENCED, Happening.UPGRADED, Happening.DOWNGRADED, Happening.DELETED)
"""Events that are logged as separate lines."""
_LONG_S: Final = 60.0
"""A rebalance that keeps restarting for this long is logged before it ends."""
_SAME_EVENT_S: Final = 0.1
"""Maximum time from a member's time-out to the rebalance that it starts."""
_NOBODY: Final[tuple[str, float, list[str]]] = ("", 0.0, [])
_MOST_NAMED: Final = 3
_MOST_CHARACTERS: Final = 300
"""Limit for texts that clients provide."""


@dataclass(slots=True)
class _Rebalance:
    began: float
    cause: str
    logged_at: float
    starts: int = 1
    timed_out: list[str] = field(default_factory=list)


class RebalanceLog:
    """Logs the events of all groups; `now` is in seconds of any monotonic clock."""

    def __init__(self) -> None:
        self._open: dict[str, _Rebalance] = {}
        self._sizes: dict[str, int] = {}
        """By group: the number of members when it was last stable or loaded; absent if 0."""
        self._timed_out = _NOBODY
        """The group, time and names of the last members to time out outside a rebalance; their removal starts one."""

    def forget(self, group_id: str) -> None:
        """Drop a group that has moved to another coordinator."""
        self._settle(group_id, 0)

    def note(self, group_id: str, note: Note, members: int, now: float) -> None:
        """Log an event of a group; `members` is the number of members after it."""
        log.debug("%s", _Line(group_id, note))
        if note.what in _BEGINS:
            self._begin(group_id, note, now)
        elif note.what in _ENDS:
            self._end(group_id, note, members, now)
        elif note.what is Happening.LOADED:
            self._settle(group_id, members)
        elif note.what in _TIMED_OUT:
            self._time_out(group_id, f"{_name(note)} ({note.reason})", now)
        elif note.what is Happening.STALLED:
            log.warning("%s", _Line(group_id, note))
        elif note.what in _LOGGED:
            log.info("%s", _Line(group_id, note))
            if note.what is Happening.DELETED:
                self.forget(group_id)

    def _begin(self, group_id: str, note: Note, now: float) -> None:
        rebalance = self._open.get(group_id)
        if rebalance is None:
            self._open[group_id] = rebalance = _Rebalance(now, _cause(note), now)
            if self._has_timed_out(group_id, now):
                rebalance.timed_out += self._timed_out[2]
                self._timed_out = _NOBODY
            return
        rebalance.starts += 1
        if now - rebalance.logged_at >= _LONG_S:
            rebalance.logged_at = now
            log.warning(
                "Group %s generation %d has been rebalancing for %d s and started over %s. First cause: %s. Now: %s",
                group_id,
                note.generation,
                now - rebalance.began,
                count(rebalance.starts - 1, "time"),
                rebalance.cause,
                _cause(note),
            )

    def _end(self, group_id: str, note: Note, members: int, now: float) -> None:
        rebalance = self._open.get(group_id)
        before = self._sizes.get(group_id, 0)
        self._settle(group_id, members)
        if rebalance is None:
            return
        more = "" if rebalance.starts == 1 else f" and {count(rebalance.starts - 1, 'more change')}"
        named = rebalance.timed_out[:_MOST_NAMED]
        if len(rebalance.timed_out) > len(named):
            named.append(f"{len(rebalance.timed_out) - len(named)} more")
        log.info(
            "Group %s generation %d %s after %d ms: %s, %d before. Cause: %s%s%s",
            group_id,
            note.generation,
            note.what,
            (now - rebalance.began) * 1000,
            count(members, "member"),
            before,
            rebalance.cause,
            more,
            f". Timed out: {', '.join(named)}" if named else "",
        )

    def _settle(self, group_id: str, members: int) -> None:
        self._open.pop(group_id, None)
        if members:
            self._sizes[group_id] = members
        else:
            self._sizes.pop(group_id, None)

    def _time_out(self, group_id: str, member: str, now: float) -> None:
        rebalance = self._open.get(group_id)
        if rebalance is not None:
            rebalance.timed_out.append(member)
        elif self._has_timed_out(group_id, now):
            self._timed_out[2].append(member)
        else:
            self._timed_out = group_id, now, [member]

    def _has_timed_out(self, group_id: str, now: float) -> bool:
        """True if members of the group timed out just before `now`."""
        group, at, _ = self._timed_out
        return group == group_id and now - at < _SAME_EVENT_S


class _Line:
    """A line that is formatted only if it is logged."""

    def __init__(self, group_id: str, note: Note) -> None:
        self._group_id = group_id
        self._note = note

    def __str__(self) -> str:
        note = self._note
        reason = f": {note.reason[:_MOST_CHARACTERS]}" if note.reason else ""
        start = f"Group {self._group_id} generation {note.generation}"
        if not note.member_id:
            return f"{start} {note.what}{reason}"
        instance = "" if note.instance_id is None else f", instance {note.instance_id}"
        member = f"member {note.member_id} (client id {note.client_id}, host {note.client_host}{instance})"
        return f"{start}: {member} {note.what}{reason}"


def _cause(note: Note) -> str:
    return note.reason.removesuffix("; client reason: not provided")[:_MOST_CHARACTERS]


def _name(note: Note) -> str:
    return (note.instance_id or note.client_id or note.member_id)[:_MOST_CHARACTERS]
