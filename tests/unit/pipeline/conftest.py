"""One small Spark session for all tests of transforms, and access log lines as the Kafka source gives them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import pytest

from tests.support.spark import log_records, spark, tolerate_open_sockets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["spark"]

Parse: TypeAlias = "Callable[[Sequence[str | bytes | None]], DataFrame]"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    tolerate_open_sockets(items, Path(__file__).parent)


@pytest.fixture(scope="session")
def parse(spark: "SparkSession") -> Parse:
    """Lines of a log to `lines.parsed`."""
    from headrace.pipeline.transforms import lines

    def parsed(texts: Sequence[str | bytes | None]) -> "DataFrame":
        return lines.parsed(log_records(spark, texts))

    return parsed
