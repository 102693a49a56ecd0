"""Additive tables: whatever the batches, repetitions and compactions, the view shows the totals."""

import random
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Additive, Stateful
from tests.support.spark import frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.engine.tables.lake import Lake

pytestmark = pytest.mark.slow

VIEWS = Additive(
    table="page_views",
    keys=("hour", "page"),
    sums=("views",),
    minima=("first",),
    maxima=("last",),
    sketches=("visitors",),
    time="hour",
)
CODES = Additive(table="status_codes", keys=("status",), sums=("requests",))
START = datetime(2015, 5, 17, 10, tzinfo=UTC)


@pytest.fixture
def lake(spark: "SparkSession", tmp_path: Path) -> "Lake":
    from headrace.pipeline.engine.tables.lake import Lake

    return Lake(spark, f"file://{tmp_path}/lake")


def requests(seed: int, count: int = 300) -> list[dict[str, object]]:
    """Return requests within three hours; some have no page."""
    chance = random.Random(seed)
    return [
        {
            "at": (START + timedelta(seconds=chance.randrange(3 * 3600))).isoformat(),
            "page": chance.choice(["/a", "/b", "/c", None]),
            "client": chance.randrange(200),
        }
        for _ in range(count)
    ]


def partials(spark: "SparkSession", rows: Sequence[dict[str, object]]) -> "DataFrame":
    from pyspark.sql import functions as sf

    return (
        frame(spark, rows, "at: timestamp, page: string, client: int")
        .groupBy(sf.date_trunc("hour", "at").alias("hour"), "page")
        .agg(
            sf.count("*").alias("views"),
            sf.min("at").alias("first"),
            sf.max("at").alias("last"),
            sf.hll_sketch_agg("client", 12).alias("visitors"),
        )
    )


def append(lake: "Lake", batch: int, rows: Sequence[dict[str, object]]) -> bool:
    return append_rows(lake, batch, partials(lake.spark, rows))


def append_rows(lake: "Lake", batch: int, rows: "DataFrame") -> bool:
    from headrace.pipeline.engine.tables import additive

    return additive.append(lake, VIEWS, rows, writer="page_views@1", batch=batch, metadata={})


def shown(rows: "DataFrame") -> list[tuple[Any, ...]]:
    from pyspark.sql import functions as sf

    readable = rows.withColumn("visitors", sf.hll_sketch_estimate("visitors"))
    return sorted((tuple(row) for row in readable.collect()), key=repr)


def versions(lake: "Lake", table: str = VIEWS.table) -> int:
    from delta.tables import DeltaTable

    return DeltaTable.forPath(lake.spark, lake.path(table)).history().count()


def test_a_repeated_batch_changes_nothing(lake: "Lake") -> None:
    assert append(lake, 0, requests(1))
    before = shown(lake.view(VIEWS))
    assert not append(lake, 0, requests(1))
    assert (shown(lake.view(VIEWS)), versions(lake)) == (before, 1)


def test_any_cut_into_batches_gives_the_view_of_one_batch(lake: "Lake") -> None:
    seed = random.randrange(1_000_000)
    print(f"{seed = }")
    rows = requests(seed)
    cuts = sorted(random.Random(seed).sample(range(1, len(rows)), 3))
    for batch, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
        append(lake, batch, rows[start:end])
    assert shown(lake.view(VIEWS)) == shown(partials(lake.spark, rows))


def test_totals_are_those_of_the_keys_in_the_batch(lake: "Lake") -> None:
    from headrace.pipeline.engine.tables import additive

    append(lake, 0, requests(3))
    [first, second] = [row for row in requests(4) if row["page"] in ("/a", None)][:2]
    append(lake, 1, [first, second])
    touched = {row[:2] for row in shown(partials(lake.spark, [first, second]))}
    found = shown(additive.totals(lake, VIEWS, partials(lake.spark, [first, second])))
    assert found == [row for row in shown(lake.view(VIEWS)) if row[:2] in touched]


def test_totals_read_only_files_with_the_hours_of_the_batch(lake: "Lake", tmp_path: Path) -> None:
    from headrace.pipeline.engine.tables import additive

    old, new = (dict(requests(5)[0], at=(START + timedelta(hours=hours)).isoformat()) for hours in (0, 5))
    append(lake, 0, [old])
    for file in (tmp_path / "lake" / VIEWS.table).glob("*.parquet"):
        file.unlink()
    append(lake, 1, [new])
    [total] = shown(additive.totals(lake, VIEWS, partials(lake.spark, [new])))
    assert total[2] == 1


@pytest.mark.parametrize("most", [50_000, 5, 2])
def test_totals_in_memory_are_those_of_the_table(lake: "Lake", most: int) -> None:
    from headrace.pipeline.engine.tables.totals import Totals

    kept = Totals(lake, VIEWS, most=most)
    # The third batch brings back the first hour, and all have rows without an hour.
    for batch, hours in enumerate(([1], [1, 2], [0, 2], [2])):
        rows = [row for row in requests(batch) if str(row["at"])[11:13] in {f"{10 + hour}" for hour in hours}]
        found = partials(lake.spark, [*rows, {"at": None, "page": "/a", "client": batch}]).persist()
        count = kept.prepare(found)
        append_rows(lake, batch, found)
        touched = {row[:2] for row in shown(found)}
        assert count == len(touched)
        assert shown(kept.after(found)) == [row for row in shown(lake.view(VIEWS)) if row[:2] in touched]


def test_totals_without_a_time_are_kept_unless_there_are_too_many(lake: "Lake") -> None:
    from headrace.pipeline.engine.tables import additive
    from headrace.pipeline.engine.tables.totals import Totals

    kept = Totals(lake, CODES, most=3)
    for batch, codes in enumerate(([200, 404], [200], [301, 302, 303], [200])):
        rows = frame(
            lake.spark, [{"status": code, "requests": batch + 1} for code in codes], "status: int, requests: bigint"
        )
        kept.prepare(rows)
        additive.append(lake, CODES, rows, writer="status_codes@1", batch=batch, metadata={})
        view = {row.status: row.requests for row in lake.view(CODES).collect()}
        assert {row.status: row.requests for row in kept.after(rows).collect()} == {code: view[code] for code in codes}


def test_a_missing_column_is_an_error(lake: "Lake") -> None:
    from headrace.pipeline.engine.tables import additive

    rows = partials(lake.spark, requests(5)).drop("last").withColumnRenamed("views", "shown")
    with pytest.raises(PipelineError, match="missing: last, views; undeclared: shown"):
        additive.append(lake, VIEWS, rows, writer="page_views@1", batch=0, metadata={})


def test_compaction_sums_up_closed_hours_once(lake: "Lake") -> None:
    from headrace.pipeline.engine.tables import additive

    for batch in range(3):
        append(lake, batch, [row for row in requests(batch) if str(row["at"]) < "2015-05-17T12"])
    append(lake, 3, [row for row in requests(3) if str(row["at"]) >= "2015-05-17T12"])
    append(lake, 4, [row for row in requests(4) if str(row["at"]) >= "2015-05-17T12"])
    before, rows = shown(lake.view(VIEWS)), lake.read(VIEWS.table).count()
    assert additive.compact(lake, VIEWS, START + timedelta(hours=2)) == 3
    assert shown(lake.view(VIEWS)) == before
    assert lake.read(VIEWS.table).count() == rows - 2 * 8  # three partials of four pages in two hours
    assert additive.compact(lake, VIEWS, START + timedelta(hours=2)) == 0
    assert versions(lake) == 6


def test_a_followed_table_has_the_rows_of_the_table_at_any_time(lake: "Lake") -> None:
    from headrace.pipeline.engine.tables import additive

    rows = frame(lake.spark, [{"status": 200, "requests": 5}], "status: int, requests: bigint")

    def stored(found: "DataFrame") -> list[tuple[Any, ...]]:
        return sorted(tuple(row) for row in found.collect())

    def add(batch: int) -> None:
        additive.append(lake, CODES, rows, writer="status_codes@1", batch=batch, metadata={})

    add(0)
    followed = lake.followed(CODES.table)
    for change in (lambda: None, lambda: add(1), lambda: add(2), lambda: additive.compact(lake, CODES, START)):
        change()
        assert stored(followed.rows()) == stored(lake.read(CODES.table))
    for batch in range(3, 6):
        add(batch)
    log = Path(lake.path(CODES.table).removeprefix("file://")) / "_delta_log"
    lake.spark.sql(f"ALTER TABLE delta.`{lake.path(CODES.table)}` SET TBLPROPERTIES ('delta.checkpointInterval' = '1')")
    add(6)
    for name in ("00000000000000000004", "00000000000000000005"):
        (log / f"{name}.json").unlink()
        (log / f".{name}.json.crc").unlink(missing_ok=True)
    assert stored(followed.rows()) == stored(lake.read(CODES.table))
    assert [tuple(row) for row in followed.rows().groupBy("status").sum("requests").collect()] == [(200, 35)]


def planned(rows: "DataFrame") -> object:
    found: object = rows._jdf.queryExecution().sparkPlan()
    return found


def jobs_of(lake: "Lake", action: Callable[[], object]) -> int:
    """Return the number of Spark jobs that an action starts."""
    context: Any = lake.spark.sparkContext
    name = f"jobs-{uuid.uuid4()}"
    context.setJobGroup(name, name)
    action()
    context.setJobGroup("", "")
    return len(context.statusTracker().getJobIdsForGroup(name))


def test_a_new_driver_finds_files_batches_and_columns_of_a_short_table_without_jobs(lake: "Lake") -> None:
    from headrace.pipeline.engine.tables import additive
    from headrace.pipeline.engine.tables.lake import Lake

    rows = frame(lake.spark, [{"status": 200, "requests": 5}], "status: int, requests: bigint")
    for batch in range(3):
        additive.append(lake, CODES, rows, writer="status_codes@1", batch=batch, metadata={})
    table = CODES.table
    log = Path(lake.path(table).removeprefix("file://")) / "_delta_log"

    def check(new: Lake) -> None:
        assert jobs_of(new, lambda: planned(new.read_cold(table))) == 0
        assert jobs_of(new, lambda: planned(new.columns_of(table).groupBy("status").count())) == 0
        assert sorted(new.read_cold(table).collect()) == sorted(lake.read(table).collect())
        assert new.columns_of(table).dtypes == lake.read(table).dtypes
        assert not new.columns_of(table).collect()
        assert new.last_batch(table, "status_codes@1") == 2
        assert new.last_batch(table, "another") is None

    new = Lake(lake.spark, lake.uri)
    assert jobs_of(new, lambda: new.last_batch(table, "status_codes@1")) == 0
    check(new)
    (log / "00000000000000000002.crc").unlink()
    check(Lake(lake.spark, lake.uri))
    new = Lake(lake.spark, lake.uri)
    additive.append(lake, CODES, rows, writer="status_codes@1", batch=3, metadata={})
    assert jobs_of(new, lambda: new.last_batch(table, "status_codes@1")) == 0
    assert new.last_batch(table, "status_codes@1") == 3


def test_a_table_without_time_is_compacted_as_a_whole(lake: "Lake") -> None:
    from headrace.pipeline.engine.tables import additive

    rows = frame(lake.spark, [{"status": 200, "requests": 5}], "status: int, requests: bigint")
    for batch in range(2):
        additive.append(lake, CODES, rows, writer="status_codes@1", batch=batch, metadata={})
    assert additive.compact(lake, CODES, START) == 2
    assert [tuple(row) for row in lake.read(CODES.table).collect()] == [(200, 10)]


def test_compaction_keeps_the_latest_row_of_each_key_of_a_stateful_table(lake: "Lake") -> None:
    from pyspark.sql import functions as sf

    from headrace.pipeline.engine.tables import additive

    robots = Stateful(table="robots", keys=("client",))
    for batch in range(3):
        rows = frame(lake.spark, [{"client": "a", "requests": batch}], "client: string, requests: int")
        with_batch = rows.withColumn("_batch", sf.lit(batch).cast("bigint"))
        lake.append("robots", with_batch, writer="robots@1", batch=batch, metadata={})
    assert additive.compact(lake, robots, START) == 3
    assert [tuple(row) for row in lake.read("robots").collect()] == [("a", 2, 2)]
    assert [tuple(row) for row in lake.view(robots).collect()] == [("a", 2)]


def test_compaction_during_appends_loses_nothing_and_a_stream_sees_each_row_once(lake: "Lake", tmp_path: Path) -> None:
    from headrace.pipeline.engine.tables import additive

    batches = [0]
    compacted = threading.Event()
    seen: list[int] = []
    failures: list[BaseException] = []
    append(lake, 0, requests(0, 50))

    def collect(rows: "DataFrame", _: int) -> None:
        seen.extend(row.views for row in rows.select("views").collect())

    def append_all() -> None:
        try:
            while len(batches) < 5 or (len(batches) < 50 and not compacted.is_set()):
                append(lake, len(batches), requests(len(batches), 50))
                batches.append(len(batches))
        except BaseException as error:
            failures.append(error)
            raise

    stream = lake.stream(VIEWS.table).writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = stream.foreachBatch(collect).start()
    appending = threading.Thread(target=append_all)
    appending.start()
    replaced = 0
    while appending.is_alive():
        replaced += additive.compact(lake, VIEWS, START + timedelta(days=1))
        if replaced > 1:
            compacted.set()
    appending.join()
    query.processAllAvailable()
    query.stop()
    assert not failures
    assert replaced > 1
    assert sum(seen) == sum(row.views for row in lake.view(VIEWS).select("views").collect()) == len(batches) * 50


def test_the_slower_of_two_compactions_changes_nothing(lake: "Lake", monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.pipeline.engine.tables import additive, partials

    for batch in range(2):
        append(lake, batch, requests(batch, 20))

    def overtaken(rows: "DataFrame", output: Additive) -> "DataFrame":
        monkeypatch.setattr(additive, "summed", partials.summed)
        additive.compact(lake, VIEWS, START + timedelta(days=1))
        return partials.summed(rows, output)

    before = shown(lake.view(VIEWS))
    monkeypatch.setattr(additive, "summed", overtaken)
    with pytest.raises(PipelineError, match="compacted by another process"):
        additive.compact(lake, VIEWS, START + timedelta(days=1))
    assert (shown(lake.view(VIEWS)), versions(lake)) == (before, 3)


def test_sums_that_do_not_fit_become_the_nearest_number_of_their_type(spark: "SparkSession") -> None:
    from headrace.pipeline.engine.tables.partials import summed

    output = Additive(table="t", keys=("key",), sums=("large", "small"))
    values: list[tuple[str, int | None, int | None]] = [
        ("over", 9 * 10**18, 2 * 10**9),
        ("over", 9 * 10**18, 2 * 10**9),
        ("under", -9 * 10**18, -2 * 10**9),
        ("under", -9 * 10**18, -2 * 10**9),
        ("none", None, None),
        ("usual", 3, 4),
        ("usual", 5, None),
    ]
    named = [dict(zip(("key", "large", "small"), row, strict=True)) for row in values]
    rows = summed(frame(spark, named, "key: string, large: bigint, small: int"), output)
    assert {row.key: (row.large, row.small) for row in rows.collect()} == {
        "over": (2**63 - 1, 2**31 - 1),
        "under": (-(2**63), -(2**31)),
        "none": (None, None),
        "usual": (8, 4),
    }
    assert dict(rows.dtypes) == {"key": "string", "large": "bigint", "small": "int"}
