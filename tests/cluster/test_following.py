"""A Headrace broker follows partitions that Kafka leads, under Kafka's controller: its logs are equal and in sync."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from headrace.wire.apis import ApiKey
from headrace.wire.batch import parse_header
from tests.adoption.history import CODECS, flush, transactional
from tests.adoption.kafka import WithZooKeeper
from tests.cluster.conftest import HEADRACE, KAFKA, Cluster, leaders, leave, metadata, wait_for_brokers
from tests.support.topics import create_topic
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

SECOND = 8
"""Id of another Kafka broker."""
BOTH = [KAFKA, HEADRACE]


def create(
    cluster: Cluster, topic: str, partitions: int = 1, *, replicas: Sequence[int] = BOTH, min_in_sync: int = 2
) -> None:
    """Create a topic that Kafka leads and Headrace follows, or with other replicas."""
    create_topic(cluster.kafka.bootstrap, topic, replicas=[replicas] * partitions, min_insync_replicas=min_in_sync)


def produce(
    cluster: Cluster, topic: str, count: int, partitions: int = 1, *, codec: str = "none", acks: str = "all"
) -> None:
    """Write records, and wait until all in-sync replicas have them, unless `acks` is 1."""
    producer = Producer(
        {"bootstrap.servers": cluster.kafka.bootstrap, "acks": acks, "linger.ms": 5, "compression.type": codec}
    )
    for number in range(count):
        producer.produce(topic, b"%d" % number * 20, b"key %d" % (number % 50), partition=number % partitions)
        producer.poll(0)
    flush(producer)


def batches(data: Path, topic: str, partition: int) -> dict[int, bytes]:
    """Return the batches in a broker's files, by base offset."""
    found: dict[int, bytes] = {}
    for path in sorted((data / f"{topic}-{partition}").glob("*.log")):
        content = path.read_bytes()
        position = 0
        while position < len(content):
            header = parse_header(content, position)
            found[header.base_offset] = content[position : position + header.size]
            position += header.size
    return found


def equal(cluster: Cluster, topic: str, partitions: int = 1) -> bool:
    """Return True if the logs of both brokers are not empty, and equal byte for byte."""
    logs = [
        [batches(data, topic, partition) for partition in range(partitions)]
        for data in (cluster.kafka.data, cluster.headrace.data)
    ]
    return logs[0] == logs[1] and all(logs[0])


def in_sync(cluster: Cluster, topic: str) -> set[int]:
    """Return the brokers that are in sync in all partitions, according to the leader."""
    (found,) = metadata(cluster.kafka.bootstrap, topic)["topics"]
    partitions = [set(partition["isr_nodes"]) for partition in found["partitions"]]
    return set.intersection(*partitions) if partitions else set()


def wait_for_equal_logs(cluster: Cluster, topic: str, partitions: int = 1) -> None:
    wait_for(lambda: equal(cluster, topic, partitions), f"equal logs of {topic}", timeout_s=60)


def wait_for_sync(cluster: Cluster, topic: str) -> None:
    wait_for(lambda: in_sync(cluster, topic) == set(BOTH), f"both replicas of {topic} in sync", timeout_s=60)


def test_acks_all_waits_for_headrace_and_the_logs_are_equal(cluster: Cluster) -> None:
    create(cluster, "plain", 3)

    produce(cluster, "plain", 3000, 3)

    wait_for_equal_logs(cluster, "plain", 3)
    assert in_sync(cluster, "plain") == set(BOTH)


def test_compressed_batches_are_equal(cluster: Cluster) -> None:
    create(cluster, "packed")

    for codec in CODECS:
        produce(cluster, "packed", 500, codec=codec)

    wait_for_equal_logs(cluster, "packed")


def test_transactions_their_markers_and_the_state_of_their_producers_are_equal(cluster: Cluster) -> None:
    create(cluster, "payments")
    for number in range(7):
        producer = transactional(cluster.kafka.bootstrap, f"payer-{number}")
        producer.produce("payments", b"%d" % number, b"k")
        flush(producer)
        if number < 6:  # the last one stays open
            (producer.commit_transaction if number % 2 else producer.abort_transaction)(20)

    wait_for_equal_logs(cluster, "payments")
    assert (cluster.headrace.data / "payments-0" / f"{0:020}.txnindex").stat().st_size > 0
    assert producers(cluster.headrace.bootstrap, "payments") == producers(cluster.kafka.bootstrap, "payments")
    producer.abort_transaction(20)


def producers(bootstrap: str, topic: str) -> list[tuple[Any, ...]]:
    """Return the producers of partition 0, with the begin of an open transaction, as a broker describes them."""
    names = ("producer_id", "producer_epoch", "last_sequence", "current_txn_start_offset")
    with WireClient(bootstrap) as client:
        request = {"topics": [{"name": topic, "partition_indexes": [0]}]}
        (partition,) = client.ask(ApiKey.DESCRIBE_PRODUCERS, 0, request)["topics"][0]["partitions"]
    found = sorted(tuple(producer[name] for name in names) for producer in partition["active_producers"])
    assert found
    return found


@pytest.mark.slow
def test_a_followed_log_is_compacted_and_copied_from_a_compacted_one(cluster: Cluster) -> None:
    settings: dict[str, Any] = {"cleanup_policy": "compact", "segment_ms": 1, "min_cleanable_dirty_ratio": 0.01}
    for topic, replicas in (("table", BOTH), ("compacted", [KAFKA])):
        create_topic(cluster.kafka.bootstrap, topic, replicas=[replicas], **settings)
        for _ in range(5):
            produce(cluster, topic, 200)

    wait_for(lambda: min(batches(cluster.headrace.data, "table", 0)) > 0, "Headrace's cleaner", timeout_s=90)

    wait_for(lambda: min(batches(cluster.kafka.data, "compacted", 0)) > 0, "Kafka's cleaner", timeout_s=90)
    reassign(cluster, "compacted", 1)
    wait_for_sync(cluster, "compacted")
    wait_for_equal_logs(cluster, "compacted")


@pytest.mark.slow
def test_a_follower_that_was_killed_catches_up(cluster: Cluster) -> None:
    create(cluster, "killed", min_in_sync=1)
    produce(cluster, "killed", 300)

    cluster.headrace.sigkill()
    produce(cluster, "killed", 300)
    cluster.headrace.start()

    wait_for_sync(cluster, "killed")
    wait_for_equal_logs(cluster, "killed")


@pytest.mark.slow
def test_a_leader_that_was_killed_is_followed_again(cluster: Cluster) -> None:
    create(cluster, "again")
    produce(cluster, "again", 300)
    wait_for_equal_logs(cluster, "again")

    cluster.kafka.restart_after_a_kill()
    wait_for_sync(cluster, "again")
    produce(cluster, "again", 300)

    wait_for_equal_logs(cluster, "again")


@pytest.mark.slow
def test_records_that_only_headrace_had_are_truncated_when_another_broker_leads(
    cluster: Cluster, tmp_path: Path
) -> None:
    second = WithZooKeeper(tmp_path / "second", cluster.zookeeper)
    second.settings["broker.id"] = str(SECOND)
    with second:
        wait_for_brokers(cluster.headrace.bootstrap, HEADRACE, KAFKA, SECOND)
        create(cluster, "diverged", replicas=[HEADRACE, SECOND], min_in_sync=1)
        produce(cluster, "diverged", 100)
        with second.frozen():
            # This record answers the fetch that is waiting, and the second broker finds it in its socket.
            produce(cluster, "diverged", 1, acks="1")
            produce(cluster, "diverged", 200, acks="1")
            cluster.headrace.sigkill()
        wait_for(lambda: leaders(cluster.kafka.bootstrap, "diverged") == {0: SECOND}, "the election", timeout_s=60)
        produce(cluster, "diverged", 50)

        cluster.headrace.start()

        wait_for(lambda: in_sync(cluster, "diverged") == {HEADRACE, SECOND}, "both in sync", timeout_s=60)
        theirs = batches(second.data, "diverged", 0)
        assert batches(cluster.headrace.data, "diverged", 0) == theirs
        assert sum(parse_header(data).record_count for data in theirs.values()) in (150, 151)
        leave(second, cluster)


def test_a_deleted_and_recreated_topic_is_copied_under_its_new_id(cluster: Cluster) -> None:
    create(cluster, "twice")
    produce(cluster, "twice", 100)
    admin = AdminClient({"bootstrap.servers": cluster.kafka.bootstrap})
    admin.delete_topics(["twice"])["twice"].result(30)

    wait_for(lambda: can_create(cluster, "twice"), "the deletion", timeout_s=60)
    produce(cluster, "twice", 50)

    wait_for_equal_logs(cluster, "twice")


def can_create(cluster: Cluster, topic: str) -> bool:
    """Create a topic. Return False if its earlier deletion is not complete."""
    try:
        create(cluster, topic)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def test_a_replica_moves_to_headrace_while_it_is_written_to(cluster: Cluster) -> None:
    create(cluster, "moved", 2, replicas=[KAFKA], min_in_sync=1)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            produce(cluster, "moved", 200, 2)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        wait_for(lambda: batches(cluster.kafka.data, "moved", 0), "records")
        reassign(cluster, "moved", 2)
        wait_for_sync(cluster, "moved")
    finally:
        stop.set()
        writing.join(30)

    wait_for_equal_logs(cluster, "moved", 2)


def reassign(cluster: Cluster, topic: str, partitions: int) -> None:
    """Reassign all partitions to both brokers."""
    moves = [{"partition_index": index, "replicas": BOTH} for index in range(partitions)]
    with WireClient(controller(cluster)) as client:
        answer = client.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            {"timeout": 30_000, "topics": [{"name": topic, "partitions": moves}]},
        )
    assert answer["error_code"] == "none", answer


def controller(cluster: Cluster) -> str:
    """Return the address of the controller, which is Headrace once Kafka was killed."""
    found = metadata(cluster.kafka.bootstrap)
    addresses = {broker["node_id"]: f"{broker['host']}:{broker['port']}" for broker in found["brokers"]}
    return addresses[found["controller_id"]]
