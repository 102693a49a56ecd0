"""The commands that look after tables: audit, trace and replay-quarantine, on the tables of real runs."""

from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.jobs import activity, archive, crawlers
from headrace.pipeline.jobs import events as parsing
from headrace.pipeline.spec.jobs import Job, job_of
from tests.pipeline.log_lines import combined

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.testing.pipeline import Lake

pytestmark = pytest.mark.slow

PIPES = "192.0.2.9|2015-05-17T10:04:00Z|/piped"


def pipes(records: "DataFrame") -> "DataFrame":
    """Parse lines with pipes between client, time and path, and no others."""
    from pyspark.sql import functions as sf

    from headrace.pipeline.parsers import FIELDS

    parts = sf.split(sf.col("value").cast("string"), r"\|")
    fields = {
        "client": sf.get(parts, sf.lit(0)),
        "event_time": sf.get(parts, sf.lit(1)).try_cast("timestamp"),
        "page": sf.get(parts, sf.lit(2)),
        "status": sf.lit(200),
        "bytes": sf.lit(0).cast("bigint"),
    }
    columns = [fields.get(name, sf.lit(None).cast("string")).alias(name) for name in FIELDS]
    reason = sf.when(fields["event_time"].isNull(), "no pipes").alias("reason")
    return records.select("*", *columns, reason)


def definition(function: Any) -> Job:
    found = job_of(function)
    assert found is not None
    return found


def lines(*paths: str, minute: int = 5) -> list[str]:
    return [combined(path, time=f"17/May/2015:10:{minute:02}:00 +0000") for path in paths]


def offsets(rows: "DataFrame", column: str) -> list[int]:
    return sorted(row[0] for row in rows.select(column).collect())


@pytest.fixture
def lake(spark: "SparkSession", headrace_lake: "Lake") -> "Lake":
    """A lake with one partition: two requests, a line with pipes, and a torn one."""
    headrace_lake.partitions = 1
    headrace_lake.run_once(parsing.events, [*lines("/", "/a"), PIPES, "torn"])
    return headrace_lake


def test_a_replayed_record_is_in_events_once_even_if_the_first_replay_was_killed(
    lake: "Lake", monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.pipeline.engine.upkeep import replay

    job, params = definition(parsing.events), parsing.Events(parser=f"{__name__}:pipes")
    with monkeypatch.context() as patched:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr(replay, "_remove", killed)
        with pytest.raises(KeyboardInterrupt):
            replay.replay(lake.tables, job, params)
    assert offsets(lake.tables.read("quarantine"), "offset") == [2, 3]
    counts = replay.replay(lake.tables, job, params)
    assert [(count.records, count.accepted) for count in counts] == [(2, 1)]

    [piped] = lake.tables.read("events").where("page = '/piped'").collect()
    assert (piped.source_offset, piped.client, piped.late_by_s) == (2, "192.0.2.9", 60.0)
    assert offsets(lake.tables.read("events"), "source_offset") == [0, 1, 2]
    assert offsets(lake.tables.read("quarantine"), "offset") == [3]


def test_lateness_of_replayed_rows_needs_no_topic_ids(lake: "Lake") -> None:
    from pyspark.sql import functions as sf

    from headrace.pipeline.engine.upkeep import replay

    stored = lake.tables.read("events").withColumn("topic_id", sf.lit(None).cast("string"))
    new = stored.where("source_offset = 0").drop("late_by_s")
    new = new.withColumn("source_offset", sf.lit(2).cast("bigint"))
    new = new.withColumn("event_time", sf.expr("event_time - INTERVAL 1 HOUR"))
    [row] = replay._with_lateness(new, stored).collect()
    assert row.late_by_s >= 3600.0
    assert row.topic_id is None


def test_an_audit_finds_lost_rows_and_rows_that_are_there_twice(lake: "Lake") -> None:
    from delta.tables import DeltaTable

    from headrace.pipeline.engine.upkeep.audit import ClusterLog
    from headrace.pipeline.engine.upkeep.job_audit import Audited, audit_job

    lake.run_once(archive.raw, lines("/b"))
    log = ClusterLog(lake.cluster)

    def audited(function: Any) -> Audited:
        found = audit_job(lake.tables, lake.checkpoints, definition(function), log.ids(["records"]), log)
        assert found is not None
        return found

    raw, events = audited(archive.raw), audited(parsing.events)
    assert (raw.is_complete, raw.files, raw.files_read) == (True, 1, 0)
    assert (events.is_complete, [item.rows for item in events.present]) == (True, [4])

    table = DeltaTable.forPath(lake.spark, lake.tables.path("raw"))
    again = lake.tables.read("raw").where("offset = 3").persist()
    again.count()
    table.delete("offset IN (1, 2)")
    lake.tables.append("raw", again, writer="test", batch=0, metadata={})
    raw = audited(archive.raw)
    log.close()
    assert [(gap.first, gap.last) for gap in raw.missing] == [(1, 2)]
    assert [item.duplicates for item in raw.present] == [1]


def test_a_record_is_traced_to_the_rows_and_topics_that_it_is_part_of(lake: "Lake") -> None:
    from headrace.pipeline.engine.upkeep.trace import Place, Tracer

    lake.run_once(archive.raw)
    for function in (activity.page_views, activity.sessions, crawlers.crawlers):
        lake.run_once(function)
    functions = (archive.raw, parsing.events, activity.page_views, activity.sessions, crawlers.crawlers)
    jobs = {job.name: job for job in map(definition, functions)}
    tracer = Tracer(lake.tables, lake.checkpoints, jobs, {name: job.params() for name, job in jobs.items()})

    reached = list(tracer.trace(Place(topic="records", partition=0, offset=1)))
    assert [(item.table, item.key, item.is_written) for item in reached] == [
        ("raw", None, True),
        ("events", None, True),
        ("page_views", "2015-05-17T10:00:00Z /a", True),
        ("sessions", None, False),  # the watermark has not passed it
    ]
    assert [item.row["views"] for item in reached if item.table == "page_views"] == [1]
    torn = list(tracer.trace(Place(topic="records", partition=0, offset=3)))
    assert [(item.table, item.row["value"]) for item in torn] == [("raw", "torn"), ("quarantine", "torn")]
    assert list(tracer.trace(Place(topic="records", partition=0, offset=9))) == []
