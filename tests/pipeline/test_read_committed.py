"""A query with `read_committed` reads only the records of committed transactions."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.killable_broker import KillableBroker, killable_broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = [f"kept {number}" for number in range(4)]


@pytest.fixture
def payments(tmp_path: Path) -> Iterator[KillableBroker]:
    """A broker whose topic `payments` has alternately committed and aborted transactions, then an open one."""
    with killable_broker(tmp_path / "broker", {}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("payments", 2, 1)])["payments"].result(30)
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "payments"})
        producer.init_transactions(30)
        for number, kept in enumerate(KEPT):
            for value, end in ((kept, producer.commit_transaction), (f"dropped {number}", producer.abort_transaction)):
                producer.begin_transaction()
                producer.produce("payments", value.encode(), partition=number % 2)
                assert producer.flush(30) == 0
                end(30)
        producer.begin_transaction()
        producer.produce("payments", b"open", partition=0)
        assert producer.flush(30) == 0
        yield broker
        producer.abort_transaction(30)


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [
        ("read_committed", KEPT),
        ("read_uncommitted", sorted([*KEPT, *(f"dropped {number}" for number in range(4)), "open"])),
    ],
)
def test_a_query_reads_at_its_isolation_level(
    payments: KillableBroker, spark: "SparkSession", tmp_path: Path, isolation: str, expected: list[str]
) -> None:
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", payments.bootstrap)
        .option("kafka.isolation.level", isolation)
        .option("subscribe", "payments")
        .option("startingOffsets", "earliest")
        .load()
    )
    query = (
        records.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "read"))
    )
    query.awaitTermination()

    assert sorted(row.value for row in spark.read.parquet(str(tmp_path / "read")).collect()) == expected
