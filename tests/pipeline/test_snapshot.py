"""Snapshots: the table is rewritten if its rows differ, and the changes are known also after a restart."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlparse

import pytest

from headrace.pipeline.spec.jobs import Snapshot
from tests.support.spark import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.pipeline.engine.tables.lake import Lake
    from headrace.pipeline.engine.tables.snapshot import SnapshotTable

TOP = Snapshot(table="top", keys=("rank",))
FIRST = ((1, "/a"), (2, "/b"), (3, "/c"))
SECOND = ((1, "/a"), (2, "/c"))


@pytest.fixture
def lake(spark: "SparkSession", tmp_path: Path) -> "Lake":
    from headrace.pipeline.engine.tables.lake import Lake

    return Lake(spark, f"file://{tmp_path}/lake")


def table(lake: "Lake") -> "SnapshotTable":
    from headrace.pipeline.engine.tables.snapshot import SnapshotTable

    return SnapshotTable(lake, TOP)


def commits(lake: "Lake") -> list[Path]:
    return sorted(Path(urlparse(lake.path("top")).path, "_delta_log").glob("*.json"))


def write(
    top: "SnapshotTable", lake: "Lake", batch: int, ranks: tuple[tuple[int, str], ...]
) -> tuple[list[tuple[int, str]], list[tuple[int, str]]] | None:
    """Return the changed and the gone rows."""
    rows = frame(lake.spark, [{"rank": rank, "page": page} for rank, page in ranks], "rank: int, page: string")
    found = top.write(rows, writer="top@1", batch=batch, metadata={})
    if found is None:
        return None
    changed, gone = (sorted((row.rank, row.page) for row in part.collect()) for part in found)
    return changed, gone


def test_only_changed_and_gone_rows_are_returned(lake: "Lake") -> None:
    top = table(lake)
    assert write(top, lake, 0, FIRST) == (list(FIRST), [])
    assert write(top, lake, 1, FIRST) is None
    assert write(top, lake, 2, SECOND) == ([(2, "/c")], [(3, "/c")])
    assert write(top, lake, 3, FIRST) == ([(2, "/b"), (3, "/c")], [])
    assert sorted(tuple(row) for row in lake.read("top").collect()) == list(FIRST)


@pytest.mark.slow
def test_a_repeated_batch_returns_the_changes_of_its_first_attempt(lake: "Lake") -> None:
    top = table(lake)
    write(top, lake, 0, FIRST)
    assert write(table(lake), lake, 0, SECOND) == (list(FIRST), [])
    write(top, lake, 1, SECOND)
    assert write(table(lake), lake, 1, FIRST) == ([(2, "/c")], [(3, "/c")])
    assert sorted(tuple(row) for row in lake.read("top").collect()) == list(SECOND)


@pytest.mark.slow
def test_a_repeated_batch_returns_its_changes_also_after_commits_of_others(lake: "Lake") -> None:
    top = table(lake)
    for batch, ranks in enumerate((FIRST, SECOND)):
        write(top, lake, batch, ranks)
    # VACUUM makes such commits, too, but takes a minute.
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path('top')}` SET TBLPROPERTIES (a = 1)")
    lake.append("top", lake.read("top").limit(0), writer="another", batch=0, metadata={})
    assert len(commits(lake)) == 4
    assert write(table(lake), lake, 1, FIRST) == ([(2, "/c")], [(3, "/c")])


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["files", "version before", "log"])
def test_a_repeated_batch_whose_changes_are_lost_returns_all_rows(lake: "Lake", lost: str) -> None:
    top = table(lake)
    write(top, lake, 0, FIRST)
    [first] = lake.read("top").inputFiles()
    write(top, lake, 1, SECOND)
    if lost == "files":
        Path(urlparse(first).path).unlink()
    else:
        lake.append("top", lake.read("top").limit(0), writer="another", batch=0, metadata={})
        jvm = cast("Any", lake.spark._jvm)
        jvm.org.apache.spark.sql.delta.DeltaLog.forTable(lake.spark._jsparkSession, lake.path("top")).checkpoint()
        for commit in commits(lake)[: 1 if lost == "version before" else 2]:
            commit.unlink()
    assert write(table(lake), lake, 1, FIRST) == (list(SECOND), [])


@pytest.mark.slow
def test_a_table_that_another_program_has_rewritten_is_replaced_whole(lake: "Lake") -> None:
    top = table(lake)
    for batch, ranks in enumerate((FIRST, SECOND)):
        write(top, lake, batch, ranks)
    lake.spark.sql(f"OPTIMIZE delta.`{lake.path('top')}`")
    more = frame(lake.spark, [{"rank": 9, "page": "/x"}], "rank: int, page: string")
    more.write.format("delta").mode("append").save(lake.path("top"))
    write(top, lake, 2, FIRST)
    assert sorted(tuple(row) for row in lake.read("top").collect()) == list(FIRST)
