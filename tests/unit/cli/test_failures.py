import pytest
from confluent_kafka import KafkaError

from headrace.cli.failures import missing_topic, refused
from headrace.cli.sending import Sent

KNOWN = ["access-log", "access-log.rejected", "orders"]


def test_the_error_for_a_missing_topic_suggests_similar_names() -> None:
    error = missing_topic("acess-log", "b:1", KNOWN)
    assert error.what == "topic 'acess-log' does not exist at b:1"
    assert error.hint == "Did you mean 'access-log' or 'access-log.rejected'? `headrace topics list` shows all topics."


def test_without_similar_names_the_error_shows_how_to_create_the_topic() -> None:
    assert "`headrace topics create payments`" in str(missing_topic("payments", "b:1", KNOWN).hint)


def test_an_error_of_the_broker_has_its_name_and_a_hint() -> None:
    error = refused(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR), "b:1", "creating topic 't'")
    assert error.what.startswith("creating topic 't': ")
    assert error.what.endswith("(INVALID_REPLICATION_FACTOR)")
    assert error.hint == "The replication factor cannot exceed the number of brokers."


def test_a_partition_without_a_leader_is_shown_by_another_command() -> None:
    error = refused(KafkaError(KafkaError.LEADER_NOT_AVAILABLE), "b:1", "listing the offsets of topic 't'")
    assert "`headrace cluster`" in str(error.hint)


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_timeouts_are_reported_as_no_answer(code: int) -> None:
    assert refused(KafkaError(code), "b:1", "asking").what == "asking: no reply from b:1"


@pytest.mark.parametrize(
    ("sent", "summary"),
    [
        (Sent("t", 1, 5, 0.2, {2: 41}), "1 record (5 B) to t, partition 2 offset 41"),
        (Sent("t", 1, 5, 0.2), "1 record (5 B) to t in 0.20 s"),
        (Sent("t", 50_000, 2048, 2.0, {0: 1, 1: 2}), "50,000 records (2.0 KB) to t in 2.0 s: 25,000 records/s"),
        (Sent("t"), "0 records (0 B) to t in 0.00 s"),
    ],
)
def test_the_summary_of_producing(sent: Sent, summary: str) -> None:
    assert sent.summary() == summary
