"""Jobs for tests of definitions; nothing runs them."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.pipeline import Additive, Append, Changelog, Expect, Interval, Stateful, Table, Topic, job
from headrace.pipeline.spec.jobs import Job, job_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionParams:
    gap: Interval = Interval("30 minutes")
    minimum: int = 1
    share: float = 0.5
    humans_only: bool = False
    key: Literal["client", "user"] = "client"
    label: str = ""


@job(
    name="sessions",
    source=Table("events"),
    params=SessionParams,
    outputs=(
        Stateful(table="sessions", keys=("client", "start")),
        Changelog(topic="sessions", of="sessions"),
    ),
    expects=(Expect(condition="client is not null", reason="no client"),),
    late="quarantined",
)
def sessions(events: Any, params: SessionParams) -> Any:
    """Visits of clients.

    A second paragraph.
    """


@job(
    name="page_views",
    source=Table("events"),
    outputs=(Additive(table="page_views", keys=("hour", "page"), sums=("views",), time="hour"),),
)
def page_views(events: Any, params: object) -> Any:
    """Views of pages by hour."""


@job(name="archive", source=Topic(), outputs=(Append(table="raw", partition_by=("ingest_date",)),))
def archive(records: Any, params: object) -> Any:
    """All records, unchanged."""


def definition(function: Any, **changes: Any) -> Job:
    """Return the definition of a decorated function, with changes."""
    found = job_of(function)
    assert found is not None
    return replace(found, **changes)


SESSIONS = definition(sessions)
PAGE_VIEWS = definition(page_views)
ARCHIVE = definition(archive)
JOBS = {item.name: item for item in (SESSIONS, PAGE_VIEWS, ARCHIVE)}
