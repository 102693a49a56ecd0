"""Sessions as a stream: the rows of the batch, once the watermark has passed them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from headrace.pipeline.jobs import activity
from headrace.pipeline.jobs.activity import Sessions
from tests.pipeline.log_lines import combined
from tests.pipeline.records import events_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Its request comes last, in the far future, so that the watermark passes all others.
END: Final = "end"


def _streamed(spark: "SparkSession", batches: "Sequence[DataFrame]", directory: Path) -> list[tuple[Any, ...]]:
    """Return the sessions that a stream emits for these batches and a last one."""
    from pyspark.sql import functions as sf

    from headrace.pipeline.engine import stateful

    last = events_of(spark, [combined(client=END, time="31/Dec/2037:00:00:00 +0000")])
    # Batches without data would emit the last sessions, but not in order with the others.
    for batch in (*batches, last, last):
        batch.coalesce(1).write.mode("append").parquet(str(directory / "events"))
    events = spark.readStream.schema(last.schema).option("maxFilesPerTrigger", 1).parquet(str(directory / "events"))
    # One partition, which is settled up to its latest event time.
    events = events.withColumns({"settled_before": sf.lit(None), "settled_after": sf.col("event_time")})
    query = (
        activity.sessions(stateful.watermarked(events, Sessions().late_by), Sessions())
        .writeStream.outputMode("append")
        .format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(directory / "sessions"))
    )
    query.awaitTermination()
    return _table(spark.read.parquet(str(directory / "sessions")))


def _table(rows: "DataFrame") -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in rows.collect() if row.client != END), key=str)


@pytest.mark.slow
def test_a_request_as_late_as_allowed_exactly_at_the_gap_belongs_to_the_session(
    spark: "SparkSession", tmp_path: Path
) -> None:
    def requests(*requests: tuple[str, str]) -> "DataFrame":
        return events_of(spark, [combined(client=name, time=f"17/May/2015:{at} +0000") for name, at in requests])

    batches = [
        requests(("a", "10:00:00"), ("b", "10:40:00")),
        requests(("b", "10:40:00")),
        requests(("a", "10:30:00")),
    ]
    found = _streamed(spark, batches, tmp_path)
    assert [(client, requests) for client, _, _, requests, _ in found] == [("a", 2), ("b", 2)]
