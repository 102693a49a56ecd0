"""The existing transforms find the truth of a generated log."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.generate.files import write_log
from headrace.pipeline.generate.parameters import Parameters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LATE_BY = "10 minutes"


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("generated") / "log"
    parameters = Parameters(lines=20_000, late=0.02, torn=0.01, duplicates=0.01, partitions=3)
    write_log(parameters, directory, progress=lambda _: None)
    return directory


@pytest.fixture(scope="module")
def parsed(spark: "SparkSession", generated: Path) -> "DataFrame":
    from headrace.pipeline.transforms import lines

    records = spark.read.text(str(generated / "access.log")).selectExpr(
        "'access-log' AS topic",
        "0 AS partition",
        "monotonically_increasing_id() AS offset",
        "cast(value AS binary) AS value",
    )
    return lines.parsed(records).cache()


@pytest.fixture(scope="module")
def events(parsed: "DataFrame") -> "DataFrame":
    from headrace.pipeline.transforms import lines

    return lines.events(parsed)


def truth(directory: Path, table: str) -> list[dict[str, Any]]:
    return [json.loads(row) for row in (directory / "truth" / f"{table}.jsonl").read_text().splitlines()]


def rows(frame: "DataFrame") -> set[tuple[Any, ...]]:
    found = [tuple(row) for row in frame.collect()]
    assert len(set(found)) == len(found)
    return set(found)


def values(row: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(row[name] for name in names)


def test_page_views_are_those_of_the_truth(events: "DataFrame", generated: Path) -> None:
    from headrace.pipeline.transforms import traffic

    hours = (
        traffic.page_views_per_minute(events, LATE_BY)
        .selectExpr(_iso("date_trunc('hour', minute)", "hour"), "page", "views")
        .groupBy("hour", "page")
        .sum("views")
    )
    assert rows(hours) == {values(row, "hour", "page", "views") for row in truth(generated, "page_views")}


def test_the_request_rate_is_that_of_the_truth(events: "DataFrame", generated: Path) -> None:
    from headrace.pipeline.transforms import traffic

    columns = ("requests", "client_errors", "server_errors", "bytes")
    minutes = traffic.request_rate_per_minute(events, LATE_BY).selectExpr(_iso("minute", "minute"), *columns)
    assert rows(minutes) == {values(row, "minute", *columns) for row in truth(generated, "traffic")}


def test_status_codes_are_those_of_the_truth(events: "DataFrame", generated: Path) -> None:
    from headrace.pipeline.transforms import traffic

    assert rows(traffic.status_codes(events)) == {
        values(row, "status", "requests") for row in truth(generated, "status_codes")
    }


def test_rejected_lines_are_the_quarantined_ones_with_their_reasons(parsed: "DataFrame", generated: Path) -> None:
    from headrace.pipeline.transforms import lines

    log = (generated / "access.log").read_text().splitlines()
    rejected = lines.rejected(parsed).orderBy("source_offset").select("line", "reason")
    assert [tuple(row) for row in rejected.collect()] == [
        (log[row["line"] - 1], row["reason"]) for row in truth(generated, "quarantined")
    ]


def test_all_crawlers_but_slow_drips_are_found(events: "DataFrame", generated: Path) -> None:
    from headrace.pipeline.transforms import crawlers

    kinds = {row["client"]: row["kind"] for row in truth(generated, "crawlers")}
    found = {row.client for row in crawlers.crawlers_per_hour(events, LATE_BY).select("client").collect()}
    assert found == {client for client, kind in kinds.items() if kind != "slow drip"}


def _iso(time: str, name: str) -> str:
    return f"date_format({time}, \"yyyy-MM-dd'T'HH:mm:ss'Z'\") AS {name}"
