"""Events in a group's timeline. Pure."""

from typing import Final, NamedTuple

from headrace.coordinator.groups.effects import Happening, Note

MAX_NAME: Final = 500
"""Groups with longer names have no history. Longer names and reasons of members are shortened."""


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
        _shortened(note.member_id),
        None if note.instance_id is None else _shortened(note.instance_id),
        _shortened(note.client_id),
        note.client_host,
        _shortened(note.reason),
    )


def _shortened(text: str) -> str:
    """Shorten a long text in the middle: the end of a member id is unique."""
    if len(text) <= MAX_NAME:
        return text
    half = MAX_NAME // 2
    return f"{text[: half - 1]}…{text[-half:]}"
