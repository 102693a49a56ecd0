"""A Spark session for tests, and a filter for pyspark's own warnings."""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A session shared by all tests."""
    pytest.importorskip("pyspark", reason="the extra headrace[pipeline] is not installed")
    from headrace.pipeline.engine.session import build
    from headrace.pipeline.spec.deployment import Deployment

    session = build(Deployment.default(lake=str(tmp_path_factory.mktemp("spark"))), name="tests", few_rows=True)
    yield session
    session.stop()


def frame(spark: "SparkSession", rows: Sequence[Mapping[str, object]], columns: str) -> "DataFrame":
    """Return a DataFrame of JSON rows, without the Python workers that `createDataFrame` starts."""
    return spark.sql(f"SELECT inline(from_json(:rows, 'array<struct<{columns}>>'))", args={"rows": json.dumps(rows)})


def log_records(spark: "SparkSession", lines: Sequence[str | bytes | None]) -> "DataFrame":
    """Return lines of an access log as records of the Kafka source, in one partition."""
    values = [line.encode() if isinstance(line, str) else line for line in lines]
    rows = [
        {"offset": offset, "encoded": None if value is None else base64.b64encode(value).decode()}
        for offset, value in enumerate(values)
    ]
    records = frame(spark, rows, "offset: bigint, encoded: string")
    return records.selectExpr("'access-log' AS topic", "0 AS partition", "offset", "unbase64(encoded) AS value")


def tolerate_open_sockets(items: Iterable[pytest.Item]) -> None:
    """Ignore the open sockets that `collect()` leaves to the garbage collector."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
        item.add_marker(pytest.mark.filterwarnings("ignore:.*socket:pytest.PytestUnraisableExceptionWarning"))
