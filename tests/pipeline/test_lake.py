"""Tables of a lake, addressed by URI."""

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Stateful
from tests.support.spark import frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.engine.tables.lake import Lake


@pytest.fixture
def lake(spark: "SparkSession", tmp_path: Path) -> "Lake":
    from headrace.pipeline.engine.tables.lake import Lake

    return Lake(spark, f"file://{tmp_path}/a lake/")


def pages(lake: "Lake", *rows: tuple[str | None, int]) -> "DataFrame":
    named = [{"page": page, "views": views} for page, views in rows]
    return frame(lake.spark, named, "page: string, views: bigint")


def append(lake: "Lake", batch: int, *rows: tuple[str | None, int], writer: str = "pages@1") -> bool:
    return lake.append("pages", pages(lake, *rows), writer=writer, batch=batch, metadata={"batch": batch})


def stored(lake: "Lake") -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in lake.read("pages").collect()), key=repr)


def metadata(lake: "Lake") -> list[dict[str, int]]:
    from delta.tables import DeltaTable

    history = DeltaTable.forPath(lake.spark, lake.path("pages")).history().orderBy("version").collect()
    return [json.loads(row.userMetadata) for row in history]


def test_a_table_is_in_the_directory_of_a_file_uri(lake: "Lake", tmp_path: Path) -> None:
    append(lake, 0, ("/a", 1))
    assert (tmp_path / "a lake" / "pages" / "_delta_log").is_dir()
    assert stored(lake) == [("/a", 1)]


def test_names_are_those_of_tables_only(lake: "Lake", tmp_path: Path) -> None:
    assert lake.names() == []
    append(lake, 0, ("/a", 1))
    (tmp_path / "a lake" / "_checkpoints").mkdir()
    assert lake.names() == ["pages"]


def test_an_absent_table_is_an_error_that_lists_the_tables(lake: "Lake") -> None:
    append(lake, 0, ("/a", 1))
    with pytest.raises(PipelineError, match=r"no table views \(tables: pages\)"):
        lake.read("views")


def test_a_table_outside_the_lake_is_refused(lake: "Lake") -> None:
    for name in ("", "../pages", "a/b", "_checkpoints", "a.b"):
        with pytest.raises(PipelineError, match="not a valid table name"):
            lake.path(name)


def test_a_batch_is_appended_once_per_writer(lake: "Lake") -> None:
    assert [append(lake, 7, ("/a", 1)), append(lake, 7, ("/a", 1)), append(lake, 6, ("/a", 1))] == [True, False, False]
    assert append(lake, 0, ("/a", 1), writer="backfill")
    assert stored(lake) == [("/a", 1), ("/a", 1)]
    assert [lake.last_batch("pages", writer) for writer in ("pages@1", "backfill", "no one")] == [7, 0, None]
    assert metadata(lake) == [{"batch": 7}, {"batch": 0}]


@pytest.mark.slow
def test_a_batch_may_add_a_column(lake: "Lake") -> None:
    append(lake, 0, ("/a", 1))
    rows = frame(lake.spark, [{"page": "/b", "views": 2, "visitors": 1}], "page: string, views: bigint, visitors: int")
    lake.append("pages", rows, writer="pages@1", batch=1, metadata={})
    assert stored(lake) == [("/a", 1, None), ("/b", 2, 1)]


def test_a_view_has_the_row_that_was_written_last_for_each_key(lake: "Lake") -> None:
    from pyspark.sql import functions as sf

    for batch, rows in enumerate(([("/a", 1), (None, 1)], [("/b", 2), (None, 3)])):
        frames = pages(lake, *rows).withColumn("_batch", sf.lit(batch).cast("bigint"))
        assert lake.append("pages", frames, writer="pages@1", batch=batch, metadata={})
    found = lake.view(Stateful(table="pages", keys=("page",)))
    assert sorted((tuple(row) for row in found.collect()), key=repr) == [("/a", 1), ("/b", 2), (None, 3)]


def test_a_batch_of_another_process_is_noticed(lake: "Lake") -> None:
    from headrace.pipeline.engine.tables.lake import Lake

    append(lake, 0, ("/a", 1))
    other = Lake(lake.spark, lake.uri)
    assert append(other, 1, ("/b", 1))
    assert append(other, 0, ("/c", 1), writer="other@1")
    assert not append(lake, 1, ("/b", 1))
    assert append(lake, 2, ("/d", 1))
    assert stored(lake) == [("/a", 1), ("/b", 1), ("/c", 1), ("/d", 1)]


@pytest.mark.slow
def test_changes_by_others_are_noticed_once_and_compactions_are_none(lake: "Lake") -> None:
    from delta.tables import DeltaTable

    from headrace.pipeline.engine.tables import delta_log

    path, writer = lake.path("pages"), "pages@1"
    for batch in range(3):
        append(lake, batch, ("/a", batch))
    lake.was_changed_by_others("pages", writer)  # who created the table is not remembered
    names = {str(row.path) for row in delta_log.TableVersion(lake.spark, path).files().collect()}
    assert delta_log.rewrite_files(lake.spark, path, names, lambda rows: rows.coalesce(1)) == 3
    append(lake, 3, ("/b", 1))
    assert not lake.was_changed_by_others("pages", writer)
    DeltaTable.forPath(lake.spark, path).delete("page = '/a'")
    append(lake, 4, ("/c", 1))
    assert lake.was_changed_by_others("pages", writer)
    assert not lake.was_changed_by_others("pages", writer)


@pytest.mark.slow
def test_two_writers_may_create_a_table_at_once(lake: "Lake") -> None:
    writers = [
        threading.Thread(target=append, args=(lake, 0, (name, 1)), kwargs={"writer": name}) for name in ("/a", "/b")
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert stored(lake) == [("/a", 1), ("/b", 1)]


def test_records_may_be_partitioned_by_their_position(lake: "Lake") -> None:
    for batch in range(2):
        # A job of a user, in whose table `timestamp` is something else.
        rows = frame(
            lake.spark,
            [{"topic_id": "id", "partition": batch, "timestamp": True}],
            "topic_id: string, partition: int, timestamp: boolean",
        )
        lake.append("t", rows, writer="w", batch=batch, metadata={}, partition_by=("topic_id", "partition"))
    assert sorted(row.partition for row in lake.read("t").collect()) == [0, 1]


def test_a_lake_on_an_unknown_file_system_is_refused_by_name(spark: "SparkSession") -> None:
    from headrace.pipeline.engine import run
    from headrace.pipeline.engine.files import Files

    with pytest.raises(PipelineError, match=r"^cannot write to nosuch://b/lake: .* No FileSystem for scheme"):
        run._check_writable(Files(spark), ["nosuch://b/lake"])
