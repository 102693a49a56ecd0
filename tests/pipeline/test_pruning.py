"""A job reads only the columns of its source table that it needs, and still sees all of them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.jobs import activity
from headrace.pipeline.jobs.activity import Referrers, Visitors
from headrace.pipeline.spec.jobs import NoParams
from tests.pipeline.log_lines import combined
from tests.pipeline.records import events_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def stored(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> "DataFrame":
    path: Path = tmp_path_factory.mktemp("events") / "events"
    events_of(spark, [combined("/a"), combined("/b", status=404)]).write.parquet(str(path))
    return spark.read.parquet(str(path))


@pytest.mark.parametrize(
    ("function", "params", "columns"),
    [
        (activity.page_views, Visitors(), {"event_time", "client", "method", "page", "status"}),
        (activity.visitors, Visitors(visitor="user_agent"), {"event_time", "user_agent"}),
        (activity.referrers, Referrers(), {"event_time", "referer"}),
        (activity.traffic, NoParams(), {"event_time", "status", "bytes"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_job_needs_the_columns_that_its_result_depends_on(
    stored: "DataFrame", function: Callable[..., Any], params: object, columns: set[str]
) -> None:
    from headrace.pipeline.engine.tables.pruning import needed

    assert set(needed(stored, lambda rows: function(rows, params))) == columns


def test_all_columns_are_needed_if_spark_does_not_scan_the_table(spark: "SparkSession") -> None:
    from headrace.pipeline.engine.tables.pruning import needed

    rows = spark.sql("SELECT 1 AS a, 2 AS b")
    assert list(needed(rows, lambda rows: rows.select("a"))) == ["a", "b"]


def test_other_columns_are_there_and_null(stored: "DataFrame") -> None:
    from headrace.pipeline.engine.tables.pruning import needed, restored

    columns = needed(stored, lambda rows: activity.status_codes(rows, NoParams()))
    rows = restored(stored.select(*columns), stored.dtypes)
    assert rows.columns == stored.columns
    assert activity.status_codes(rows, NoParams()).exceptAll(activity.status_codes(stored, NoParams())).count() == 0
