"""A Spark session for tests, and the warnings that pyspark gives rise to by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One for all tests of a run; started by the first that needs it."""
    pytest.importorskip("pyspark", reason="the extra headrace[pipeline] is not installed")
    from headrace.pipeline.session import build_session

    session = build_session("tests", tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def tolerate_open_sockets(items: Iterable[pytest.Item], directory: Path) -> None:
    """For tests in `directory`: `collect()` leaves the socket that it read the rows from to the garbage collector."""
    for item in items:
        if directory in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*socket:pytest.PytestUnraisableExceptionWarning"))
