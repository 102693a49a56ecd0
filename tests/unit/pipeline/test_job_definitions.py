"""The definitions of the built-in jobs."""

from typing import Final

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs import activity, archive, crawlers, events
from headrace.pipeline.spec.jobs import Append, Changelog, Output, Snapshot, Stateful, Topic, job, job_of
from headrace.pipeline.spec.params import known

_MODULES: Final = (archive, events, activity, crawlers)
JOBS: Final = {
    found.name: found
    for module in _MODULES
    for var in vars(module).values()
    if callable(var) and (found := job_of(var)) is not None
}


def test_all_jobs_are_defined() -> None:
    of_lines = ["events", "raw"]
    of_events = ["crawlers", "page_views", "referrers", "sessions", "status_codes", "traffic", "visitors"]
    assert sorted(JOBS) == sorted([*of_lines, *of_events, "top_pages"])


def test_a_job_writes_the_table_of_its_name_first() -> None:
    assert [definition.tables[0] for definition in JOBS.values()] == [*JOBS]


def test_parameters_can_be_set_as_text() -> None:
    assert [name for name, job in JOBS.items() if any(param.default is None for param in known(job))] == []


def refusal(*outputs: Output) -> str:
    with pytest.raises(PipelineError) as refused:
        job(name="a", source=Topic(), outputs=outputs)(lambda rows, params: rows)
    return str(refused.value)


def test_outputs_that_cannot_work_are_refused() -> None:
    assert "has no output" in refusal()
    assert "names table 'b', which the job does not write" in refusal(Append(table="a"), Changelog(topic="b", of="b"))
    assert "is stateful, so its other outputs must be changelogs" in refusal(Stateful(table="a"), Append(table="b"))
    assert "late_by names 'patience', which is not a parameter" in refusal(Stateful(table="a", late_by="patience"))
    assert "needs source=Table" in refusal(Snapshot(table="a", keys=("rank",)))
