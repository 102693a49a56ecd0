"""Lateness depends on the log alone: any cut into batches gives the same seconds."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.pipeline.engine.reached import Reached
from tests.support.examples import examples
from tests.support.spark import frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Event: TypeAlias = tuple[str, int, int | None]
"""Topic id, partition and milliseconds; the offset is the place in the list."""

EPOCH = datetime(2015, 5, 17, tzinfo=UTC)
IDS = ("old", "new")
EVENTS = st.lists(
    st.tuples(st.sampled_from(IDS), st.integers(0, 1), st.none() | st.integers(0, 5_000)), min_size=3, max_size=20
)


def expected(events: list[Event]) -> list[float | None]:
    """Compute lateness as its definition reads."""
    latest: dict[tuple[str, int], int] = {}
    found: list[float | None] = []
    for topic_id, partition, time in events:
        if time is None:
            found.append(None)
            continue
        newest = max(time, latest.get((topic_id, partition), time))
        found.append((newest - time) / 1000)
        latest[topic_id, partition] = newest
    return found


def in_batches(spark: "SparkSession", events: list[Event], cuts: list[int]) -> list[float | None]:
    from headrace.pipeline.engine.quality import lateness

    before = Reached()
    found: dict[int, float | None] = {}
    for start, end in zip([0, *cuts], [*cuts, len(events)], strict=True):
        named = [
            {
                "topic_id": topic_id,
                "source_partition": partition,
                "source_offset": offset,
                "event_time": None if time is None else (EPOCH + timedelta(milliseconds=time)).isoformat(),
            }
            for offset, (topic_id, partition, time) in enumerate(events)
            if start <= offset < end
        ]
        columns = "topic_id: string, source_partition: int, source_offset: bigint, event_time: timestamp"
        rows = frame(spark, named, columns)
        found |= {row.source_offset: row.late_by_s for row in lateness.with_lateness(rows, before.latest).collect()}
        before, _ = lateness.reached(rows, before)
    return [found[offset] for offset in range(len(events))]


@settings(max_examples=examples(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, data=st.data())
@pytest.mark.slow
def test_any_cut_into_batches_gives_the_lateness_of_the_log(
    spark: "SparkSession", events: list[Event], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(events) - 1), max_size=2)))
    assert in_batches(spark, events, cuts) == expected(events)


def test_the_latest_time_of_earlier_batches_counts(spark: "SparkSession") -> None:
    events: list[Event] = [("old", 0, 5_000), ("old", 0, 3_500), ("old", 1, 0), ("new", 0, 1_000), ("old", 0, None)]
    assert in_batches(spark, events, [1]) == [0.0, 1.5, 0.0, 0.0, None]
