"""Late rows of a query with state: the same ones as in a batch, in the quarantine, and counted."""

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient

pytest.importorskip("pyspark")

from headrace.pipeline.engine.query import Query, Surroundings
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.spec import client_settings
from headrace.pipeline.spec.deployment import JobSettings
from headrace.pipeline.spec.jobs import Append, Changelog, Expect, Job, Stateful, Table, Topic
from headrace.pipeline.spec.params import Interval
from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.slow

END: Final = 100_000
FAST: Final = [("a", second) for second in range(0, 600, 10)]
SLOW: Final = [("b", second) for second in range(0, 600, 10)]
LATE: Final = [("b", 100), ("b", 479)]
IN_TIME: Final = ("b", 480)
MANY: Final = [("c", 590)] * 9
PHASES: Final[tuple[tuple[list[tuple[str, int]], list[tuple[str, int]]], ...]] = (
    (FAST, SLOW[:6]),
    ([*MANY, ("end", END)], [*SLOW[6:55], *LATE, IN_TIME, *SLOW[55:], ("end", END)]),
    ([("end", END)], [("end", END)]),
)
"""Records of partitions 0 and 1, as client and seconds. One after 540 s may be 60 s late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    late_by: Interval = Interval("1 minute")


def _visits(records: "DataFrame", _: object) -> "DataFrame":
    return records.selectExpr(
        "topic_id",
        "partition AS source_partition",
        "offset AS source_offset",
        "timestamp AS ingested_at",
        "cast(key AS string) AS client",
        "timestamp_seconds(cast(cast(value AS string) AS int)) AS event_time",
    )


def _per_minute(visits: "DataFrame", _: object) -> "DataFrame":
    from pyspark.sql import functions as sf

    windows = visits.where("client != 'end'").groupBy(sf.window("event_time", "1 minute"), "client")
    return windows.agg(sf.count("*").alias("visits")).selectExpr("window.start AS minute", "client", "visits")


VISITS: Final = Job(name="visits", version=1, source=Topic(), outputs=(Append(table="visits"),), function=_visits)
PER_MINUTE: Final = Job(
    name="per_minute",
    version=1,
    source=Table("visits"),
    outputs=(Stateful(table="per_minute", late_by="late_by"), Changelog(topic="per-minute", of="per_minute")),
    function=_per_minute,
    params=Minutes,
    expects=(Expect(condition="visits < 9", reason="too many"),),
    late="quarantined",
)


@dataclass
class Ran:
    lake: Lake
    bootstrap: str
    late: int


@pytest.fixture(scope="module")
def ran(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Both jobs after several batches from a fast and a slow partition, with late records; all minutes have ended."""
    directory = tmp_path_factory.mktemp("late")
    lake = Lake(spark, f"{directory}/lake")
    running: list[StreamingQuery] = []
    with BrokerProcess(directory / "broker") as broker:
        around = Surroundings(
            spark=spark,
            lake=lake,
            cluster=client_settings.plain(broker.bootstrap),
            checkpoints=f"{directory}/checkpoints",
        )
        settings = JobSettings(topic="in", trigger="300 milliseconds")
        queries = [
            Query(VISITS, None, settings, around),
            Query(PER_MINUTE, Minutes(), settings, around, origin="in"),
        ]
        Topics(broker.bootstrap).create("in", partitions=2, config={})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for phase in PHASES:
            for partition, records in enumerate(phase):
                for client, second in records:
                    producer.produce("in", str(second), client, partition=partition)
            assert producer.flush(30) == 0
            running = running or [queries[0].start(once=False)]
            running[0].processAllAvailable()
            running = running if len(running) > 1 else [*running, queries[1].start(once=False)]
            running[1].processAllAvailable()
        for query, stopped in zip(queries, running, strict=True):
            query.stop(stopped)
        late = sum(measured.late for measured in queries[1].measured.values())
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("headrace-per_minute")])
        places = answer["headrace-per_minute"].result(30).topic_partitions or []
        positions = {(place.topic, place.partition): place.offset for place in places}
    assert positions == {("in", 0): len(FAST) + len(MANY) + 2, ("in", 1): len(SLOW) + len(LATE) + 3}
    return Ran(lake, broker.bootstrap, late)


def rows(frame: "DataFrame") -> Counter[tuple[object, ...]]:
    return Counter(tuple(row) for row in frame.collect())


def test_a_slow_partition_loses_nothing_and_a_stream_has_the_rows_of_the_batch(ran: Ran) -> None:
    in_time = ran.lake.read("visits").where("late_by_s <= 60")
    batch = rows(_per_minute(in_time, None).where("visits < 9"))
    assert rows(ran.lake.read("per_minute")) == batch
    assert sum(visits for (_, _, visits) in batch.elements() if isinstance(visits, int)) == len(FAST + SLOW) + 1


def test_late_rows_are_in_the_quarantine_and_counted(ran: Ran) -> None:
    quarantined = ran.lake.read("quarantine").where("reason LIKE 'late%'").orderBy("offset").collect()
    assert [(row.job, row.reason, row.topic, row.partition, row.offset) for row in quarantined] == [
        ("per_minute", "late by more than 1 minute", "in", 1, 55),
        ("per_minute", "late by more than 1 minute", "in", 1, 56),
    ]
    assert ran.late == 2


def test_a_result_that_does_not_meet_an_expectation_is_in_the_quarantine(ran: Ran) -> None:
    [row] = ran.lake.read("quarantine").where("reason = 'too many'").collect()
    assert bytes(row.value) == b'{"minute":"1970-01-01T00:09:00.000Z","client":"c","visits":9}'


def test_lateness_is_that_of_the_partition_alone(ran: Ran) -> None:
    late = ran.lake.read("visits").where("late_by_s > 0").orderBy("source_offset")
    assert [(row.source_partition, row.late_by_s) for row in late.collect()] == [(1, 440.0), (1, 61.0), (1, 60.0)]
