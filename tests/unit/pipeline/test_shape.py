import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.pipeline import Additive, Changelog, Stateful, Table, Topic
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import shape
from headrace.pipeline.spec.jobs import Publish
from tests.unit.pipeline.example_jobs import (
    ARCHIVE,
    JOBS,
    PAGE_VIEWS,
    SESSIONS,
    archive,
    definition,
    page_views,
    sessions,
)

VIEWS: dict[str, Any] = {"table": "page_views", "keys": ("hour", "page"), "sums": ("views",), "time": "hour"}


def test_readers_of_tables_need_only_the_stored_shape() -> None:
    for job in JOBS.values():
        stored = shape.from_json(json.loads(json.dumps(shape.shape_of(job).as_json())))
        assert shape.changes(stored, shape.shape_of(job)) == ()
        outputs = [output for output in job.outputs if not isinstance(output, Changelog | Publish)]
        # `late_by` matters only to writers.
        assert shape.table_outputs(stored) == {
            output.table: replace(output, late_by=None) if isinstance(output, Stateful) else output
            for output in outputs
        }


def changed(**changes: Any) -> str:
    """Describe how changes of the job `page_views` change its shape."""
    found = shape.changes(shape.shape_of(PAGE_VIEWS), shape.shape_of(definition(page_views, **changes)))
    return "; ".join(map(str, found))


def views(**changes: Any) -> tuple[Additive, ...]:
    return (Additive(**VIEWS | changes),)


def test_a_job_may_change_in_ways_that_its_tables_allow() -> None:
    assert changed(outputs=views(sums=("views", "bytes"), sketches=("visitors",))) == ""
    assert changed(outputs=(*views(), Changelog(topic="views", of="page_views"))) == ""
    assert changed(late="quarantined") == ""
    shape.check_resumable(shape.shape_of(PAGE_VIEWS), shape.shape_of(PAGE_VIEWS))


def test_a_change_that_cannot_resume_is_named() -> None:
    assert changed(source=Topic()) == "its source changed from table events to topic"
    assert changed(source=Table("raw")) == "its source changed from table events to table raw"
    assert changed(version=2) == "its version changed from 1 to 2"
    keys = "keys of table page_views changed from (hour, page) to (day, page)"
    assert changed(outputs=views(keys=("day", "page"))) == keys
    assert changed(outputs=views(sums=())) == "sums of table page_views changed from (views) to ()"
    assert changed(outputs=views(time=None)) == "time of table page_views changed from hour to none"
    stateful = Stateful(table="page_views", keys=("hour", "page"))
    assert changed(outputs=(stateful,)) == "table page_views changed from Additive to Stateful"
    assert changed(outputs=views(table="views")) == "table page_views is gone; table views is new"


def test_a_stateful_table_keeps_its_mode_and_an_appended_one_its_partitions() -> None:
    now = definition(sessions, outputs=(Stateful(table="sessions", keys=("client", "start"), mode="update"),))
    assert [change.what for change in shape.changes(shape.shape_of(SESSIONS), shape.shape_of(now))] == [
        "mode of table sessions"
    ]
    [output] = ARCHIVE.outputs
    now = definition(archive, outputs=(type(output)(table="raw"),))  # type: ignore[call-arg]
    assert [change.what for change in shape.changes(shape.shape_of(ARCHIVE), shape.shape_of(now))] == [
        "partition_by of table raw"
    ]


def test_a_changed_schema_of_state_is_named() -> None:
    stored = shape.shape_of(SESSIONS, {"sessions": "client STRING"})
    now = shape.shape_of(SESSIONS, {"sessions": "client STRING, user STRING"})
    [change] = shape.changes(stored, now)
    assert str(change) == "the state of sessions changed from (client STRING) to (client STRING, user STRING)"
    assert shape.changes(stored, shape.shape_of(SESSIONS)) == ()


def test_the_refusal_says_how_to_go_on() -> None:
    now = shape.shape_of(definition(page_views, source=Topic()))
    with pytest.raises(PipelineError) as refused:
        shape.check_resumable(shape.shape_of(PAGE_VIEWS), now)
    assert "job page_views cannot resume from its checkpoint: its source changed from" in str(refused.value)
    assert "version=2" in str(refused.value)
    assert "--lake" in str(refused.value)


def test_a_shape_in_another_format_is_refused() -> None:
    with pytest.raises(PipelineError, match="format 9, which this release of Headrace cannot read"):
        shape.from_json({**shape.shape_of(ARCHIVE).as_json(), "format": 9})
