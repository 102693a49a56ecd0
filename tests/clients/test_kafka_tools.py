"""Kafka's command-line tools."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tests.clients.brokers import BrokerUnderTest
from tests.clients.conftest import start_driver
from tests.clients.drivers.confluent_driver import ConfluentDriver
from tests.clients.drivers.java_driver import JavaDriver, run_tool
from tests.clients.messages import plain
from tests.support.broker_process import BrokerProcess
from tests.support.kafka_tools import (
    CONFIGS,
    DUMP_LOG,
    GET_OFFSETS,
    LOG_DIRS,
    TOPICS,
)

DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
API_VERSIONS = "org.apache.kafka.tools.BrokerApiVersionsCommand"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"


@pytest.fixture
def java(shared_broker: BrokerUnderTest) -> Iterator[JavaDriver]:
    driver = start_driver("java", shared_broker)
    assert isinstance(driver, JavaDriver)
    yield driver
    driver.close()


def test_kafka_topics(java: JavaDriver, topic: str) -> None:
    java.run(TOPICS, "--create", "--topic", topic, "--partitions", "2", "--config", "segment.bytes=1048576")
    java.run(TOPICS, "--alter", "--topic", topic, "--partitions", "3")

    described = java.run(TOPICS, "--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\tTopicId: \S{{22}}\tPartitionCount: 3\tReplicationFactor: 1", described)
    assert "segment.bytes=1048576" in described
    for partition in range(3):
        assert re.search(
            rf"Topic: {topic}\tPartition: {partition}\tLeader: (\d)\tReplicas: \1\tIsr: \1\b", described
        ), described

    java.run(TOPICS, "--delete", "--topic", topic)
    assert topic not in java.run(TOPICS, "--list").splitlines()


def test_kafka_configs(java: JavaDriver, shared_broker: BrokerUnderTest, topic: str) -> None:
    java.create_topic(topic, 1)
    of_topic = ("--entity-type", "topics", "--entity-name", topic)

    java.run(CONFIGS, *of_topic, "--alter", "--add-config", "retention.ms=3600000,cleanup.policy=[compact,delete]")
    changed = java.run(CONFIGS, *of_topic, "--describe")
    assert "cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:" in changed
    assert "retention.ms=3600000 sensitive=false" in changed

    java.run(CONFIGS, *of_topic, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms=604800000" in java.run(CONFIGS, *of_topic, "--describe", "--all")

    with pytest.raises(AssertionError, match=r"no\.such\.setting"):
        java.run(CONFIGS, *of_topic, "--alter", "--add-config", "no.such.setting=1")

    broker = str(min(AdminClient({"bootstrap.servers": shared_broker.bootstrap}).list_topics(timeout=20).brokers))
    of_broker = java.run(CONFIGS, "--entity-type", "brokers", "--entity-name", broker, "--describe", "--all")
    assert "num.partitions=4 sensitive=false synonyms={STATIC_BROKER_CONFIG:num.partitions=4" in of_broker


def test_kafka_delete_records_and_get_offsets(
    java: JavaDriver, shared_broker: BrokerUnderTest, topic: str, tmp_path: Path
) -> None:
    java.create_topic(topic, 1)
    ConfluentDriver(shared_broker.bootstrap).produce(topic, plain(30, "deleted"))
    deletion = {"partitions": [{"topic": topic, "partition": 0, "offset": 12}], "version": 1}
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps(deletion))

    java.run(DELETE_RECORDS, "--offset-json-file", str(plan))

    def offset_at(time: str) -> str:
        return java.run(GET_OFFSETS, "--topic-partitions", f"{topic}:0", "--time", time).strip()

    assert offset_at("earliest") == f"{topic}:0:12"
    assert offset_at("latest") == f"{topic}:0:30"
    assert offset_at("max-timestamp").startswith(f"{topic}:0:")
    read = java.consume_from_beginning(topic, 18)
    assert [record.offset for record in read] == list(range(12, 30))


def test_performance_tools(java: JavaDriver, shared_broker: BrokerUnderTest, topic: str) -> None:
    java.create_topic(topic, 6)
    records = ("--num-records", "50000")

    produced = run_tool(
        PRODUCER_PERFORMANCE,
        *("--topic", topic, *records, "--record-size", "100", "--throughput", "-1"),
        *("--bootstrap-server", shared_broker.bootstrap),
    )
    consumed = java.run(CONSUMER_PERFORMANCE, "--topic", topic, *records, "--timeout", "20000")

    assert "50000 records sent" in produced
    # start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, ...
    assert int(consumed.splitlines()[-1].split(",")[4]) == 50_000


def test_log_dirs_and_api_versions(java: JavaDriver, topic: str) -> None:
    java.create_topic(topic, 1)
    java.produce(topic, plain(5, "sized"))

    described = json.loads(java.run(LOG_DIRS, "--describe", "--topic-list", topic).splitlines()[-1])
    partitions = [
        partition
        for broker in described["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    ]
    assert [partition["partition"] for partition in partitions] == [f"{topic}-0"]
    assert partitions[0]["size"] > 0

    versions = java.run(API_VERSIONS)
    for api in ("Produce(0)", "Fetch(1)", "Metadata(3)", "CreateTopics(19)"):
        assert re.search(rf"{re.escape(api)}: .*\[usable: \d+\]", versions), api


def test_dump_log_reads_files_of_a_stopped_broker(java: JavaDriver, own_broker: BrokerUnderTest, topic: str) -> None:
    """Check indexes (Kafka, too, pads them while it runs), offsets, groups and producer state."""
    if not isinstance(own_broker, BrokerProcess):
        pytest.skip("stops the broker")
    driver = ConfluentDriver(own_broker.bootstrap)
    group = f"{topic}-group"
    java_of_own = JavaDriver(own_broker.bootstrap)
    java_of_own.run(TOPICS, "--create", "--topic", topic, "--partitions", "1", "--config", "index.interval.bytes=100")
    for lot in range(4):
        driver.produce(topic, plain(5, f"left {lot}"))
    with driver.group_consumer(topic, group) as consumer:
        consumer.receive(20)
        consumer.commit()
    own_broker.sigterm()

    segment = own_broker.data / f"{topic}-0" / "00000000000000000000"
    checked = run_tool(DUMP_LOG, "--index-sanity-check", "--files", f"{segment}.index,{segment}.timeindex")
    assert checked.count("passed sanity check") == 2
    entries = run_tool(DUMP_LOG, "--verify-index-only", "--files", f"{segment}.index,{segment}.timeindex")
    assert not re.search("(?i)mismatch|not found|out of order|non-secutive", entries), entries

    offsets = [path for path in sorted(own_broker.data.glob("__consumer_offsets-*/*.log")) if path.stat().st_size]
    decoded = run_tool(DUMP_LOG, "--offsets-decoder", "--files", ",".join(map(str, offsets)))
    assert f'"group":"{group}","topic":"{topic}","partition":0' in decoded
    assert '"offset":20' in decoded
    assert '"protocolType":"consumer"' in decoded

    snapshots = [str(path) for path in (own_broker.data / f"{topic}-0").glob("*.snapshot")]
    assert "lastOffset: 19" in run_tool(DUMP_LOG, "--files", ",".join(snapshots))


@pytest.fixture
def open_transaction(java: JavaDriver, shared_broker: BrokerUnderTest, topic: str) -> Iterator[Producer]:
    """A producer with a committed and an open transaction in `topic`; its id is also `topic`."""
    java.create_topic(topic, 1)
    producer = Producer({"bootstrap.servers": shared_broker.bootstrap, "transactional.id": topic})
    producer.init_transactions(20)
    for number in range(2):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        assert producer.flush(20) == 0
        if number == 0:
            producer.commit_transaction(20)
    yield producer
    producer.abort_transaction(20)


# As encoded in `__transaction_state`.
EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT = 0, 1, 2, 4


def test_kafka_transactions(java: JavaDriver, open_transaction: Producer, topic: str) -> None:
    listed = re.search(rf"^{topic}\s+(\d+)\s+(\d+)\s+Ongoing", java.run(TRANSACTIONS, "list"), re.MULTILINE)
    assert listed
    broker, producer = listed.groups()

    described = java.run(TRANSACTIONS, "describe", "--transactional-id", topic)
    own = rf"^{broker}\s+{topic}\s+{producer}\s+(\d+)\s+Ongoing\s+60000\s+\d+\s+\d+\s+{topic}-0"
    found = re.search(own, described, re.MULTILINE)
    assert found, described

    producers = java.run(TRANSACTIONS, "describe-producers", "--topic", topic, "--partition", "0")
    # ... LatestCoordinatorEpoch, LastSequence, LastTimestamp, CurrentTransactionStartOffset
    assert re.search(rf"^{producer}\s+{found[1]}\s+-?\d+\s+\d+\s+\d+\s+2\s", producers, re.MULTILINE), producers

    hanging = java.run(TRANSACTIONS, "find-hanging", "--broker-id", broker)
    assert topic not in hanging


def test_dump_log_reads_the_states_of_transactions(
    java: JavaDriver, shared_broker: BrokerUnderTest, open_transaction: Producer, topic: str
) -> None:
    found = shared_broker.data.rglob("__transaction_state-*/*.log")
    segments = {path.parent.name: str(path) for path in found if path.stat().st_size}  # one replica of each partition
    dumped = run_tool(DUMP_LOG, "--transaction-log-decoder", "--files", ",".join(segments.values()))
    own = [line for line in dumped.splitlines() if f'"transactionalId":"{topic}"' in line]
    states = [int(state) for line in own for state in re.findall(r'"transactionStatus":(\d)', line)]
    assert states == [EMPTY, ONGOING, PREPARE_COMMIT, COMPLETE_COMMIT, ONGOING]
    assert f'"transactionPartitions":[{{"topic":"{topic}","partitionIds":[0]}}]' in own[1]
    assert all('"transactionTimeoutMs":60000' in line for line in own)

    (directory,) = shared_broker.data.rglob(f"{topic}-0")
    log = run_tool(DUMP_LOG, "--deep-iteration", "--files", str(directory / "00000000000000000000.log"))
    assert log.count("isTransactional: true") == 3
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: \d+", log) == ["COMMIT"]
