"""`headrace transactions` against a broker; with HEADRACE_TEST_BOOTSTRAP, against Apache Kafka.

Verification is disabled (`transaction.partition.verification.enable=false`) so that transactions can hang.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace import clock
from headrace.cli.cluster import Cluster
from headrace.wire.apis import ApiKey
from headrace.wire.batch import TRANSACTIONAL_FLAG
from headrace.wire.records import RecordData, build_batch
from tests.cli.conftest import Headrace
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

HOUR_MS = 3_600_000


@pytest.fixture
def producer(bootstrap: str, topic: str) -> Iterator[Producer]:
    """A producer with a transaction open in both partitions; its transactional id is the topic's name."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic, "transaction.timeout.ms": 50_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    old_ms = clock.now_ms() - HOUR_MS
    for partition in (0, 1):
        producer.produce(topic, b"x", partition=partition, timestamp=old_ms)
    producer.flush(30)
    yield producer
    producer.abort_transaction(30)


@pytest.fixture
def hanging(bootstrap: str, topic: str) -> int:
    """The id of a producer with a transaction in partition 0 that is unknown to every coordinator."""
    with WireClient(bootstrap) as client:
        init_request = {"transactional_id": None, "transaction_timeout": 0}
        producer_id: int = client.ask(ApiKey.INIT_PRODUCER_ID, 4, init_request)["producer_id"]
        batch = build_batch(
            [RecordData(None, b"x", clock.now_ms() - HOUR_MS)],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            attributes=TRANSACTIONAL_FLAG,
        )
        data = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
        request = {"transactional_id": "ghost", "acks": -1, "timeout": 30_000, "topic_data": data}

        def is_produced() -> bool:
            answer = client.ask(ApiKey.PRODUCE, 8, request)
            error = answer["responses"][0]["partition_responses"][0]["error_code"]
            # Kafka's controller may answer before the broker leads the new partition.
            assert error in ("none", "not_leader_or_follower", "unknown_topic_or_partition")
            return bool(error == "none")

        wait_for(is_produced, "the record of a transaction without a coordinator")
    return producer_id


def listed(headrace: Headrace, *words: str) -> dict[str, Any]:
    return {load["transactional_id"]: load for load in json.loads(headrace("transactions", *words, "--json").stdout)}


def producers(headrace: Headrace, topic: str) -> list[dict[str, Any]]:
    found = json.loads(headrace("transactions", "describe-producers", f"{topic}:0", "--json").stdout)
    assert isinstance(found, list)
    return found


@pytest.mark.usefixtures("producer")
def test_a_list_shows_coordinator_producer_and_state_and_a_long_one_age_and_timeout(
    headrace: Headrace, topic: str
) -> None:
    found = listed(headrace, "list", "--long")[topic]
    assert found["state"] == "Ongoing"
    assert found["producer_id"] >= 0
    assert found["timeout_ms"] == 50_000
    assert 0 <= found["age_seconds"] < 60
    assert len(found["partitions"]) == 2
    assert (
        f"{topic}\t{found['coordinator']}\t{found['producer_id']}\tOngoing" in headrace("transactions", "list").stdout
    )


@pytest.mark.usefixtures("producer")
def test_lists_are_filtered(headrace: Headrace, topic: str) -> None:
    producer_id = str(listed(headrace, "list")[topic]["producer_id"])
    assert topic in listed(headrace, "list", "--state", "ongoing", "--producer-id", producer_id, "--pattern", ".*")
    assert topic not in listed(headrace, "list", "--state", "CompleteCommit")
    assert topic not in listed(headrace, "list", "--producer-id", "987654")
    assert topic not in listed(headrace, "list", "--longer-than", "1h")
    assert topic not in listed(headrace, "list", "--pattern", "nothing")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("list", "--state", "open"), "'open' is not a transaction state"),
        (("list", "--longer-than", "long"), "'long' is not a duration"),
        (("list", "--pattern", "["), "do not accept the pattern '['"),
        (("abort", "orders:0", "--yes"), "give either --start-offset or --producer-id"),
        (("abort", "orders:0", "--producer-id", "1", "--yes"), "give both --producer-id and --producer-epoch"),
        (("abort", "orders:0,1", "--start-offset", "0", "--yes"), "'orders:0,1' does not name exactly one partition"),
        (("abort", "orders:0", "--start-offset", "0"), "aborting needs confirmation"),
    ],
)
def test_an_invalid_command_line_is_refused(headrace: Headrace, words: tuple[str, ...], problem: str) -> None:
    assert problem in headrace("transactions", *words, status=2).stderr


def test_a_description_shows_partitions_and_first_offsets_until_the_end(
    headrace: Headrace, producer: Producer, topic: str
) -> None:
    found = listed(headrace, "describe", topic)[topic]
    assert found["partitions"] == [{"topic": topic, "partition": partition, "start_offset": 0} for partition in (0, 1)]
    printed = headrace("transactions", "describe", topic).stdout
    assert "state\tOngoing" in printed
    assert f"{topic}\t1\t0" in printed
    assert f"Did you mean '{topic}'?" in headrace("transactions", "describe", f"{topic}x", status=1).stderr

    producer.commit_transaction(30)
    producer.begin_transaction()
    found = listed(headrace, "describe", topic)[topic]
    assert (found["state"], found["age_seconds"], found["partitions"]) == ("CompleteCommit", None, [])


@pytest.mark.usefixtures("producer")
def test_the_producers_of_a_partition_are_described(headrace: Headrace, topic: str) -> None:
    [found] = producers(headrace, topic)
    assert (found["last_sequence"], found["start_offset"], found["coordinator_epoch"]) == (0, 0, None)
    assert "start_offset" in headrace("transactions", "describe-producers", topic).stdout


def test_a_hanging_transaction_is_found_and_aborted(
    headrace: Headrace, bootstrap: str, topic: str, hanging: int
) -> None:
    [broker, *_] = Cluster(bootstrap).describe([topic])[0].partitions[0].replicas
    for words in ((f"{topic}:0",), (topic, "--broker", str(broker.id))):
        result = headrace("transactions", "find-hanging", *words, "--json")
        [found] = json.loads(result.stdout)
        assert (found["producer_id"], found["start_offset"]) == (hanging, 0)
    assert json.loads(headrace("transactions", "find-hanging", topic, "--longer-than", "2h", "--json").stdout) == []
    assert f"headrace transactions abort {topic}:0 --start-offset 0" in result.stderr

    headrace("transactions", "abort", f"{topic}:0", "--start-offset", "0", "--yes")

    assert json.loads(headrace("transactions", "find-hanging", topic, "--json").stdout) == []
    assert producers(headrace, topic)[0]["start_offset"] is None


def test_a_broker_without_replicas_is_refused(headrace: Headrace, topic: str) -> None:
    result = headrace("transactions", "describe-producers", topic, "--broker", "77", status=1)
    assert "broker 77 has no replica" in result.stderr


def test_a_hanging_transaction_is_aborted_by_its_producer(headrace: Headrace, topic: str, hanging: int) -> None:
    headrace("transactions", "abort", f"{topic}:0", "--producer-id", str(hanging), "--producer-epoch", "0", "--yes")
    assert producers(headrace, topic)[0]["start_offset"] is None


@pytest.mark.usefixtures("producer")
def test_a_transaction_with_a_coordinator_is_not_hanging(headrace: Headrace, topic: str) -> None:
    result = headrace("transactions", "find-hanging", topic)
    assert result.stdout.count("\n") == 1
    assert "No hanging transactions in 2 partitions." in result.stderr


@pytest.mark.usefixtures("hanging")
def test_an_abort_lists_the_start_offsets_of_open_transactions(headrace: Headrace, topic: str) -> None:
    result = headrace("transactions", "abort", f"{topic}:0", "--start-offset", "7", "--yes", status=1)
    assert "Open transactions begin at 0." in result.stderr


@pytest.mark.usefixtures("producer")
def test_an_abort_warns_if_the_transaction_is_not_hanging(headrace: Headrace, topic: str) -> None:
    result = headrace("transactions", "abort", f"{topic}:1", "--start-offset", "0", "--yes")
    assert f"its coordinator will end it ('{topic}', Ongoing)" in result.stderr


def test_an_abort_of_a_producer_that_does_not_exist_is_refused(headrace: Headrace, topic: str) -> None:
    abort = ("transactions", "abort", f"{topic}:0", "--producer-id", "5", "--producer-epoch", "0", "--yes")
    assert f"producer 5 has no open transaction in {topic}:0" in headrace(*abort, status=1).stderr
    assert producers(headrace, topic) == []


def test_an_abort_with_a_stale_epoch_is_refused(headrace: Headrace, topic: str, hanging: int) -> None:
    abort = ("transactions", "abort", f"{topic}:0", "--producer-id", str(hanging), "--producer-epoch")
    headrace(*abort, "3", "--yes")
    assert f"producer {hanging} no longer has epoch 0" in headrace(*abort, "0", "--yes", status=1).stderr
