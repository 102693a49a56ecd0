"""The audit of a table against a broker's log."""

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from headrace.pipeline.engine.upkeep.presence import Present, merged
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import client_settings
from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess
from tests.support.spark import frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


def positions(spark: "SparkSession", offsets: Iterable[int], topic_id: str = "id") -> "DataFrame":
    named = [{"topic": "t", "topic_id": topic_id, "partition": 0, "offset": offset} for offset in offsets]
    return frame(spark, named, "topic: string, topic_id: string, partition: int, offset: bigint")


def present(rows: "DataFrame", topic_id: str = "id") -> list[Present]:
    from headrace.pipeline.engine.upkeep import offsets_present

    position = offsets_present.columns(rows.columns)
    assert position is not None
    return merged(offsets_present.in_rows(rows, position), {topic_id: "t"})


def test_gaps_and_duplicates_are_found_in_large_tables(spark: "SparkSession") -> None:
    gaps = (range(5, 6), range(32_766, 32_770), range(70_000, 140_000), range(140_001, 140_003))
    there = spark.range(2, 150_000).selectExpr("'t' AS topic", "'id' AS topic_id", "0 AS partition", "id AS offset")
    for gap in gaps:
        there = there.where(f"offset NOT BETWEEN {gap[0]} AND {gap[-1]}")
    [found] = present(there.union(positions(spark, [7, 8])))
    assert (found.first, found.last, found.gaps, found.duplicates) == (2, 149_999, gaps, 2)


def test_a_lost_row_is_missing_and_a_marker_is_explained(spark: "SparkSession", broker: BrokerProcess) -> None:
    from headrace.pipeline.engine import topics
    from headrace.pipeline.engine.upkeep.audit import ClusterLog, audit

    Topics(broker.bootstrap).create("t", partitions=1, config={})
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "audit"})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce("t", b"x")
        producer.flush()
        end()
    cluster = client_settings.plain(broker.bootstrap)
    [topic_id] = topics.Topics(cluster.confluent("admin")).ids(["t", "unknown"]).values()
    log = ClusterLog(cluster)
    # records 0-2, marker 3, aborted 4-6, marker 7, records 8-10, marker 11
    gaps = audit(present(positions(spark, [0, 2, 8, 9, 10], topic_id), topic_id), log, {("t", 0): 12})
    log.close()
    assert [(gap.first, gap.last, gap.verdict) for gap in gaps] == [
        (1, 1, "missing"),
        (3, 7, "explained"),
        (11, 11, "explained"),
    ]


def test_a_topic_created_again_stops_the_job(broker: BrokerProcess) -> None:
    from confluent_kafka.admin import AdminClient

    from headrace.pipeline.engine import topics
    from headrace.pipeline.engine.exactly_once import topic_ids

    cluster = client_settings.plain(broker.bootstrap)
    Topics(broker.bootstrap).create("t", partitions=1, config={})
    first = topics.Topics(cluster.confluent("admin")).ids(["t"])
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", first["t"])
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics(["t"])["t"].result()
    Topics(broker.bootstrap).create("t", partitions=1, config={})
    second = topics.Topics(cluster.confluent("admin")).ids(["t"])
    with pytest.raises(
        PipelineError, match=f"with id {first['t']}, but the topic was created again with id {second['t']}"
    ):
        topic_ids.check(first, second, job="raw")
