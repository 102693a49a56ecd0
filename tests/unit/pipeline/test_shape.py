import json
from dataclasses import replace
from typing import Any

import pytest

from headrace.pipeline import Additive, Changelog, Stateful, Table, Topic
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import shape
from headrace.pipeline.spec.jobs import Job, Publish
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


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_a_shape_survives_its_file(job: Job) -> None:
    stored = json.loads(json.dumps(shape.shape_of(job).as_json()))
    assert shape.changes(shape.from_json(stored), shape.shape_of(job)) == ()


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_readers_of_tables_need_only_the_shape(job: Job) -> None:
    stored = shape.from_json(json.loads(json.dumps(shape.shape_of(job).as_json())))
    outputs = [output for output in job.outputs if not isinstance(output, Changelog | Publish)]
    for output in outputs:
        found = shape.table_outputs(stored)[output.table]
        if isinstance(found, Stateful) and isinstance(output, Stateful):
            found = replace(found, late_by=output.late_by)  # matters only to writers
        assert found == output
    assert len(shape.table_outputs(stored)) == len(outputs)


@pytest.mark.parametrize(
    "now",
    [
        definition(page_views, outputs=(Additive(**VIEWS | {"sums": ("views", "bytes"), "sketches": ("visitors",)}),)),
        definition(page_views, outputs=(Additive(**VIEWS), Changelog(topic="views", of="page_views"))),
        definition(page_views, late="quarantined"),
    ],
    ids=["new sums and sketches", "new changelog", "late rows"],
)
def test_a_job_may_change_in_ways_that_its_tables_allow(now: Job) -> None:
    shape.check_resumable(shape.shape_of(PAGE_VIEWS), shape.shape_of(now))


@pytest.mark.parametrize(
    ("now", "change"),
    [
        (definition(page_views, source=Topic()), "its source changed from table events to topic"),
        (definition(page_views, source=Table("raw")), "its source changed from table events to table raw"),
        (definition(page_views, version=2), "its version changed from 1 to 2"),
        (
            definition(page_views, outputs=(Additive(**VIEWS | {"keys": ("day", "page")}),)),
            "keys of table page_views changed from (hour, page) to (day, page)",
        ),
        (
            definition(page_views, outputs=(Additive(**VIEWS | {"sums": ()}),)),
            "sums of table page_views changed from (views) to ()",
        ),
        (
            definition(page_views, outputs=(Additive(**VIEWS | {"time": None}),)),
            "time of table page_views changed from hour to none",
        ),
        (
            definition(page_views, outputs=(Stateful(table="page_views", keys=("hour", "page")),)),
            "table page_views changed from Additive to Stateful",
        ),
        (
            definition(page_views, outputs=(Additive(**VIEWS | {"table": "views"}),)),
            "table page_views is gone; table views is new",
        ),
    ],
)
def test_a_change_that_cannot_resume_is_named(now: Job, change: str) -> None:
    found = shape.changes(shape.shape_of(PAGE_VIEWS), shape.shape_of(now))
    assert "; ".join(map(str, found)) == change


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
