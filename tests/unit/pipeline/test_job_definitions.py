"""The definitions of the built-in jobs."""

from typing import Final

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs import activity, archive, crawlers, events
from headrace.pipeline.spec.jobs import Append, Changelog, Job, Output, Snapshot, Stateful, Topic, job, job_of
from headrace.pipeline.spec.params import known

_MODULES: Final = (archive, events, activity, crawlers)
JOBS: Final = {
    found.name: found
    for module in _MODULES
    for var in vars(module).values()
    if callable(var) and (found := job_of(var)) is not None
}


def test_all_jobs_are_defined() -> None:
    assert sorted(JOBS) == [
        "crawlers",
        "events",
        "page_views",
        "raw",
        "referrers",
        "sessions",
        "status_codes",
        "top_pages",
        "traffic",
        "visitors",
    ]


@pytest.mark.parametrize("definition", JOBS.values(), ids=lambda definition: definition.name)
def test_a_job_writes_the_table_of_its_name_first(definition: Job) -> None:
    assert definition.tables[0] == definition.name


@pytest.mark.parametrize("definition", JOBS.values(), ids=lambda definition: definition.name)
def test_parameters_can_be_set_as_text(definition: Job) -> None:
    assert all(param.default is not None for param in known(definition))


def test_a_snapshot_needs_a_table() -> None:
    with pytest.raises(PipelineError, match="needs source=Table"):
        job(name="best", source=Topic(), outputs=(Snapshot(table="best", keys=("rank",)),))(lambda rows, params: rows)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((), "has no output"),
        ((Append(table="a"), Changelog(topic="b", of="b")), "names table 'b', which the job does not write"),
        ((Stateful(table="a"), Append(table="b")), "is stateful, so its other outputs must be changelogs"),
        ((Stateful(table="a", late_by="patience"),), "late_by names 'patience', which is not a parameter"),
    ],
)
def test_outputs_that_cannot_work_are_refused(outputs: tuple[Output, ...], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        job(name="a", source=Topic(), outputs=outputs)(lambda rows, params: rows)
