"""The settings that limit moves."""

from headrace.cli.placement.plan import Move
from headrace.cli.placement.throttles import brokers, parse_rate, topic_settings
from tests.support.refusals import wrong_reasons

MOVES = [
    Move("orders", 0, (1, 2), (2, 3), None),
    Move("orders", 1, (2, 1), (1, 2), None),
    Move("users", 4, (1,), (1, 3), None),
]


def test_rates() -> None:
    rates = {"1000": 1000, "2KB": 2048, "1.5 mb": 1_572_864, "1G": 2**30, "10MiB/s": 10 * 2**20, "7B": 7}
    assert {text: parse_rate(text, "--throttle") for text in rates} == rates


def test_an_invalid_rate_is_refused() -> None:
    reasons = dict.fromkeys(("", "0", "fast", "-1", "1TB", "99999999999G", "9" * 500), "is not a rate")
    assert wrong_reasons(reasons, lambda text: parse_rate(text, "--throttle")) == {}


def test_senders_and_new_replicas_are_throttled() -> None:
    assert topic_settings(MOVES) == {
        "orders": {
            "leader.replication.throttled.replicas": "0:1,0:2",
            "follower.replication.throttled.replicas": "0:3",
        },
        "users": {
            "leader.replication.throttled.replicas": "4:1",
            "follower.replication.throttled.replicas": "4:3",
        },
    }


def test_all_brokers_that_send_or_receive_get_a_rate() -> None:
    assert brokers(MOVES) == [1, 2, 3]


def test_a_move_without_a_copy_needs_no_throttle() -> None:
    assert (topic_settings([MOVES[1]]), brokers([MOVES[1]])) == ({}, [])
