"""A thousand partitions written to at once."""

from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition

from headrace.testing import Broker
from tests.support.topics import create_topic

PARTITIONS = 1000


def test_one_request_may_write_to_a_thousand_partitions(tmp_path: Path) -> None:
    with Broker(data=tmp_path) as broker:
        create_topic(broker.bootstrap, "t", PARTITIONS)
        # kafka-python, unlike librdkafka, sends everything for a broker in one request
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=30_000, max_block_ms=60_000)
        sent = [producer.send("t", b"%d" % number, partition=number) for number in range(PARTITIONS)]
        producer.flush(60)
        assert [item.get(0).offset for item in sent] == [0] * PARTITIONS
        metrics = producer.metrics()["producer-metrics"]
        assert metrics["records-per-request-avg"] > PARTITIONS / 2
        producer.close()
        consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap)
        ends = consumer.end_offsets([KafkaTopicPartition("t", number) for number in range(PARTITIONS)])
        consumer.close()
        assert set(ends.values()) == {1}
