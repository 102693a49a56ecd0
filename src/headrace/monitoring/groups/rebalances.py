"""Reconstruct a group's rebalances from its events: causes, membership changes, durations, and members waited for.

Pure. Events must be read in order. Classic groups join and sync; groups of the consumer protocol assign and reconcile.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.coordinator.groups.effects import Happening
from headrace.monitoring.groups.events import Event

JOIN: Final = "join"
"""Members join or rejoin: from the event that causes the rebalance to the last join."""
SYNC: Final = "sync"
"""Members wait for their leader's assignment."""
ASSIGN: Final = "assign"
"""The coordinator computes a new target assignment."""
RECONCILE: Final = "reconcile"
"""Members revoke partitions and take over new ones."""

_ARRIVALS: Final = frozenset({Happening.JOINED, Happening.REJOINED, Happening.REPLACED})
_DEPARTURES: Final = frozenset({Happening.LEFT, Happening.TIMED_OUT, Happening.AWAY})
_OF_MEMBERS: Final[Mapping[Happening, str]] = {
    Happening.JOINED: "joined",
    Happening.LEFT: "left",
    Happening.AWAY: "left",
    Happening.TIMED_OUT: "timed_out",
    Happening.NOT_REJOINED: "timed_out",
    Happening.FENCED: "fenced",
    Happening.SUBSCRIBED: "changed_subscription",
}


@dataclass(slots=True)
class _Phase:
    name: str
    started_ms: int
    ended_ms: int | None = None
    ended_by: str = ""
    waited_for: dict[str, int] = field(default_factory=dict)
    """Waiting time in ms by member id, for members that delayed the phase."""

    def as_json(self, clients: dict[str, Event]) -> dict[str, Any]:
        return {
            "phase": self.name,
            "ms": None if self.ended_ms is None else self.ended_ms - self.started_ms,
            "ended_by": self.ended_by or None,
            "waited_for": [
                {**_member_json(member_id, clients), "ms": ms}
                for member_id, ms in sorted(self.waited_for.items(), key=lambda item: -item[1])
            ],
        }


@dataclass(slots=True)
class Rebalance:
    """One rebalance; times in ms. `outcome` is 'stable', 'empty', 'superseded', 'interrupted' or 'in progress'."""

    generation: int
    started_ms: int
    reason: str
    phases: list[_Phase]
    outcome: str = "in progress"
    ended_ms: int | None = None
    members: dict[str, dict[str, None]] = field(default_factory=lambda: {name: {} for name in _OF_MEMBERS.values()})
    """Members by what they did, in order of time."""

    def as_json(self, clients: dict[str, Event]) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "started_ms": self.started_ms,
            "ended_ms": self.ended_ms,
            "ms": None if self.ended_ms is None else self.ended_ms - self.started_ms,
            "outcome": self.outcome,
            "reason": self.reason,
            "phases": [phase.as_json(clients) for phase in self.phases],
            **{
                name: [_member_json(member, clients) for member in self.members[name]]
                for name in dict.fromkeys(_OF_MEMBERS.values())
            },
        }


class Timeline:
    """Turns events into `rebalances`, oldest first. `clients` identifies the members."""

    def __init__(self) -> None:
        self.rebalances: list[Rebalance] = []
        self.clients: dict[str, Event] = {}
        """An event with the client id and host of each member, by member id."""
        self._open: Rebalance | None = None
        self._just_now: list[Event] = []
        """Earlier events of the same millisecond: the event that causes a rebalance precedes it."""
        self._arrived_ms: dict[str, int] = {}
        self._revoking: dict[str, int] = {}
        self._handlers: Mapping[Happening | None, Callable[[Event], None]] = {
            Happening.JOINED: self._on_joined,
            Happening.REJOINED: self._on_joined,
            Happening.REPLACED: self._on_joined,
            Happening.TIMED_OUT: self._on_timed_out,
            Happening.NOT_REJOINED: self._on_timed_out,
            Happening.REVOKING: self._on_revoking,
            Happening.RECONCILED: self._on_reconciled,
            Happening.REBALANCING: self._on_rebalancing,
            Happening.COMPLETING: self._on_completing,
            Happening.ASSIGNED: self._on_assigned,
            Happening.BUMPED: self._on_bumped,
            Happening.TARGETED: self._on_targeted,
            Happening.STABLE: self._on_stable,
            Happening.EMPTY: self._on_empty,
            Happening.DELETED: self._on_interrupted,
            Happening.LOADED: self._on_interrupted,
        }

    def read(self, event: Event) -> None:
        known = self.clients.get(event.member_id)
        if event.member_id and (known is None or not known.client_id or event.happening is Happening.REPLACED):
            self.clients[event.member_id] = event
        if self._just_now and self._just_now[-1].at_ms != event.at_ms:
            self._just_now.clear()
        self._note_member(event)
        if event.happening in self._handlers:
            self._handlers[event.happening](event)
        self._just_now.append(event)

    def as_json(self) -> list[dict[str, Any]]:
        return [rebalance.as_json(self.clients) for rebalance in self.rebalances]

    # Members

    def _note_member(self, event: Event) -> None:
        rebalance = self._open
        kind = None if event.happening is None else _OF_MEMBERS.get(event.happening)
        if rebalance is None or kind is None:
            return
        rebalance.members[kind].setdefault(event.member_id)

    def _on_joined(self, event: Event) -> None:
        self._arrived_ms[event.member_id] = event.at_ms

    def _on_timed_out(self, event: Event) -> None:
        phase = self._phase(JOIN) or self._phase(SYNC) or self._phase(RECONCILE)
        if phase is not None:
            phase.waited_for[event.member_id] = event.at_ms - phase.started_ms

    def _on_revoking(self, event: Event) -> None:
        self._revoking.setdefault(event.member_id, event.at_ms)

    def _on_reconciled(self, event: Event) -> None:
        phase = self._phase(RECONCILE)
        asked = self._revoking.pop(event.member_id, None)
        if phase is not None and event.at_ms > phase.started_ms:
            phase.waited_for[event.member_id] = event.at_ms - (phase.started_ms if asked is None else asked)

    # Classic groups

    def _on_rebalancing(self, event: Event) -> None:
        self._begin(event, JOIN)
        self._arrived_ms = {item.member_id: item.at_ms for item in self._just_now if item.happening in _ARRIVALS}

    def _on_completing(self, event: Event) -> None:
        phase = self._phase(JOIN)
        if self._open is None or phase is None:
            return
        self._open.generation = event.generation
        last = max(self._arrived_ms.values(), default=0)
        gone = any(item.happening in _DEPARTURES for item in self._just_now)
        if any(item.happening is Happening.NOT_REJOINED for item in self._just_now):
            phase.ended_by = "rebalance timeout"
        elif last == event.at_ms or gone or not self._arrived_ms:
            phase.ended_by = "the last member"
            for member_id, at_ms in self._arrived_ms.items():
                if at_ms == last and at_ms > phase.started_ms:
                    phase.waited_for[member_id] = at_ms - phase.started_ms
        else:
            phase.ended_by = "group.initial.rebalance.delay.ms"
        phase.ended_ms = event.at_ms
        self._open.phases.append(_Phase(SYNC, event.at_ms))

    def _on_assigned(self, event: Event) -> None:
        phase = self._phase(SYNC)
        if phase is not None:
            phase.ended_by = "the leader's assignment"
            phase.waited_for[event.member_id] = event.at_ms - phase.started_ms

    # Groups of the consumer protocol

    def _on_bumped(self, event: Event) -> None:
        self._begin(event, ASSIGN)
        if self._open is not None:
            self._open.generation = event.generation
        self._revoking.clear()

    def _on_targeted(self, event: Event) -> None:
        phase = self._phase(ASSIGN)
        if self._open is not None and phase is not None:
            phase.ended_ms = event.at_ms
            phase.ended_by = event.reason
            self._open.phases.append(_Phase(RECONCILE, event.at_ms))

    # Ends of rebalances

    def _on_stable(self, event: Event) -> None:
        self._end(event.at_ms, "stable")

    def _on_empty(self, event: Event) -> None:
        if self._open is not None:
            self._open.generation = event.generation
        self._end(event.at_ms, "empty")

    def _on_interrupted(self, event: Event) -> None:
        # Loading a group does not restore the state of its rebalance.
        self._end(event.at_ms, "interrupted")

    def _begin(self, event: Event, phase: str) -> None:
        self._end(event.at_ms, "superseded")
        self._open = Rebalance(event.generation, event.at_ms, event.reason, [_Phase(phase, event.at_ms)])
        self.rebalances.append(self._open)
        for item in self._just_now:
            self._note_member(item)

    def _end(self, at_ms: int, outcome: str) -> None:
        if self._open is None:
            return
        last = self._open.phases[-1]
        if last.ended_ms is None:
            last.ended_ms = at_ms
        self._open.ended_ms, self._open.outcome = at_ms, outcome
        self._open = None

    def _phase(self, name: str) -> _Phase | None:
        if self._open is None or self._open.phases[-1].name != name:
            return None
        return self._open.phases[-1]


def timeline_of(events: Iterable[Event]) -> Timeline:
    timeline = Timeline()
    for event in events:
        timeline.read(event)
    return timeline


def event_json(event: Event, clients: dict[str, Event]) -> dict[str, Any]:
    member = _member_json(event.member_id, clients) if event.member_id else None
    return {
        "time_ms": event.at_ms,
        "event": event.what.lower(),
        "text": event.what.lower() if event.happening is None else event.happening.value,
        "generation": event.generation,
        "member": member,
        "reason": event.reason,
    }


def _member_json(member_id: str, clients: dict[str, Event]) -> dict[str, Any]:
    known = clients.get(member_id)
    return {
        "member_id": member_id,
        "client_id": known.client_id if known else "",
        "host": known.client_host.removeprefix("/") if known else "",
        "instance_id": known.instance_id if known else None,
    }
