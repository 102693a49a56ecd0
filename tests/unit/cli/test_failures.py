from confluent_kafka import KafkaError

from headrace.cli.failures import missing_topic, refused
from headrace.cli.sending import Sent

KNOWN = ["access-log", "access-log.rejected", "orders"]


def test_the_error_for_a_missing_topic_suggests_similar_names_or_how_to_create_it() -> None:
    error = missing_topic("acess-log", "b:1", KNOWN)
    assert error.what == "topic 'acess-log' does not exist at b:1"
    assert error.hint == "Did you mean 'access-log' or 'access-log.rejected'? `headrace topics list` shows all topics."
    assert "`headrace topics create payments`" in str(missing_topic("payments", "b:1", KNOWN).hint)


def test_an_error_of_the_broker_has_its_name_and_a_hint() -> None:
    error = refused(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR), "b:1", "creating topic 't'")
    assert error.what.startswith("creating topic 't': ")
    assert error.what.endswith("(INVALID_REPLICATION_FACTOR)")
    assert error.hint == "The replication factor cannot exceed the number of brokers."
    error = refused(KafkaError(KafkaError.LEADER_NOT_AVAILABLE), "b:1", "listing the offsets of topic 't'")
    assert "`headrace cluster`" in str(error.hint)


def test_timeouts_are_reported_as_no_answer() -> None:
    for code in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
        assert refused(KafkaError(code), "b:1", "asking").what == "asking: no reply from b:1"


def test_the_summary_of_producing() -> None:
    assert [
        sent.summary()
        for sent in (
            Sent("t", 1, 5, 0.2, {2: 41}),
            Sent("t", 1, 5, 0.2),
            Sent("t", 50_000, 2048, 2.0, {0: 1, 1: 2}),
            Sent("t"),
        )
    ] == [
        "1 record (5 B) to t, partition 2 offset 41",
        "1 record (5 B) to t in 0.20 s",
        "50,000 records (2.0 KB) to t in 2.0 s: 25,000 records/s",
        "0 records (0 B) to t in 0.00 s",
    ]
