"""A query with `read_committed` reads only the records of committed transactions."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.support.killable_broker import KillableBroker, killable_broker
from tests.support.topics import create_topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = [f"kept {number}" for number in range(4)]


@pytest.fixture
def payments(tmp_path: Path) -> Iterator[KillableBroker]:
    """A broker whose topic `payments` has alternately committed and aborted transactions, then an open one."""
    with killable_broker(tmp_path / "broker", {}) as broker:
        create_topic(broker.bootstrap, "payments", 2)
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


def test_a_query_reads_at_its_isolation_level(payments: KillableBroker, spark: "SparkSession", tmp_path: Path) -> None:
    def read(isolation: str) -> list[str]:
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
            .option("checkpointLocation", str(tmp_path / f"checkpoint-{isolation}"))
            .trigger(availableNow=True)
            .start(str(tmp_path / isolation))
        )
        query.awaitTermination()
        return sorted(row.value for row in spark.read.parquet(str(tmp_path / isolation)).collect())

    assert read("read_committed") == KEPT
    assert read("read_uncommitted") == sorted([*KEPT, *(f"dropped {number}" for number in range(4)), "open"])
