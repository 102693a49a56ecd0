"""Events in a group's timeline. Pure."""

from typing import NamedTuple

from headrace.coordinator.groups.effects import Happening, Note


class Event(NamedTuple):
    """An event in a group's timeline. `what` is the name of a Happening, of this version or a newer one."""

    group_id: str
    at_ms: int
    what: str
    generation: int
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    reason: str

    @property
    def happening(self) -> Happening | None:
        """The kind of event; None if it is defined only in a newer version."""
        return Happening.__members__.get(self.what)


def event_of(group_id: str, note: Note, at_ms: int) -> Event:
    return Event(
        group_id,
        at_ms,
        note.what.name,
        note.generation,
        note.member_id,
        note.instance_id,
        note.client_id,
        note.client_host,
        note.reason,
    )
