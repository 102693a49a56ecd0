"""What happened to a group, as its timeline keeps it. Pure."""

from typing import NamedTuple


class Event(NamedTuple):
    """One line of a group's timeline; `what` is the name of a Happening."""

    group_id: str
    at_ms: int
    what: str
    generation: int
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    reason: str
