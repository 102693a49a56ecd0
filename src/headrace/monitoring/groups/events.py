"""What happened to a group, as its timeline keeps it. Pure."""

from typing import NamedTuple

from headrace.coordinator.groups.effects import Happening, Note


class Event(NamedTuple):
    """One line of a group's timeline; `what` is the name of a Happening, perhaps of a newer version."""

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
        """None for one that only a newer version knows."""
        return Happening.__members__.get(self.what)


def event_of(group_id: str, note: Note, at_ms: int) -> Event:
    """The line of a timeline that a note becomes."""
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
