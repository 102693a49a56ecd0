"""The test kit for jobs, on jobs that are right and on jobs that are not."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.jobs import activity
from headrace.pipeline.spec.jobs import Additive, Job, Stateful, Table, job
from tests.pipeline.log_lines import combined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.testing.pipeline import Lake

pytestmark = pytest.mark.slow


def lines(seed: int, count: int = 200) -> list[str]:
    """Return requests of a few clients within six hours, some of them torn."""
    chance = random.Random(seed)
    found = []
    for second in sorted(chance.randrange(6 * 3600) for _ in range(count)):
        time = f"17/May/2015:{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} +0000"
        found.append(combined(f"/{chance.randrange(5)}", client=f"192.0.2.{chance.randrange(9)}", time=time))
    return [*found, "torn"]


@job(
    name="clients",
    source=Table("events"),
    outputs=(Additive(table="clients", keys=("page",), sums=("clients",)),),
)
def clients_of_each_batch(events: "DataFrame", params: object) -> "DataFrame":
    """Count distinct clients, which cannot be summed up."""
    from pyspark.sql import functions as sf

    return events.groupBy("page").agg(sf.count_distinct("client").alias("clients"))


@pytest.mark.parametrize(
    ("streamed", "seed"),
    [(activity.page_views, 1), (activity.sessions, 2)],
    ids=["with sums, sketches and a changelog", "with a state"],
)
def test_the_stream_of_a_good_job_equals_the_batch(spark: "SparkSession", streamed: object, seed: int) -> None:
    from headrace.testing.pipeline import assert_stream_equals_batch

    assert_stream_equals_batch(streamed, lines(seed), seed, batches=2)  # type: ignore[arg-type]


def test_a_job_whose_batches_cannot_be_summed_up_is_found(spark: "SparkSession", headrace_lake: "Lake") -> None:
    from headrace.testing.pipeline import assert_stream_equals_batch

    with pytest.raises(AssertionError, match=r"table clients, seed 3: the stream and the batch differ\n  only in the"):
        assert_stream_equals_batch(clients_of_each_batch, lines(3), 3, kills=0, batches=2, lake=headrace_lake)


def test_a_killed_job_repeats_its_batch(spark: "SparkSession", headrace_lake: "Lake") -> None:
    from headrace.testing.pipeline import Change, KilledError

    with pytest.raises(KilledError, match="before-commit"):
        headrace_lake.run_once(activity.status_codes, lines(4), kill_at="before-commit")
    assert headrace_lake.result(activity.status_codes).topics == {"status-codes": []}
    result = headrace_lake.run_once(activity.status_codes)
    assert result.tables == {"status_codes": [{"status": 200, "requests": 200}]}
    assert result.topics == {"status-codes": [Change("200", {"status": 200, "requests": 200})]}


def test_a_wrong_kill_point_is_refused(spark: "SparkSession", headrace_lake: "Lake") -> None:
    with pytest.raises(PipelineError, match="'mid-table' is not a kill point: use before-ledger, after-table"):
        headrace_lake.run_once(activity.status_codes, kill_at="mid-table")


def _visits(function: "Callable[[DataFrame], DataFrame]") -> Job:
    """Return a stateful job under a constant name."""
    output = Stateful(table="visits", keys=("client",), mode="update", late_by="late_by")
    return Job(
        name="visits",
        version=1,
        source=Table("events"),
        outputs=(output,),
        params=activity.Sessions,
        function=lambda events, _: function(events),
    )


@pytest.mark.parametrize("changed", ["aggregate", "group"])
def test_a_job_with_another_state_is_refused_with_instructions(
    spark: "SparkSession", headrace_lake: "Lake", changed: str
) -> None:
    from pyspark.sql import functions as sf

    def before(events: "DataFrame") -> "DataFrame":
        hours = events.groupBy(sf.window("event_time", "1 hour"), "client")
        return hours.agg(sf.count("*").alias("requests")).drop("window")

    def after(events: "DataFrame") -> "DataFrame":
        more, columns = (
            ("status",) if changed == "group" else (),
            [sf.max("page").alias("page")] if changed == "aggregate" else [],
        )
        hours = events.groupBy(sf.window("event_time", "1 hour"), "client", *more)
        return hours.agg(sf.count("*").alias("requests"), *columns).drop("window", *more)

    headrace_lake.run_once(_visits(before), lines(1, 20))
    with pytest.raises(PipelineError, match=r"visits cannot resume from its checkpoint: .*version=2.*--lake"):
        headrace_lake.run_once(_visits(after), lines(2, 20))
