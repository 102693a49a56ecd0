"""Calls that may never return."""

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.pipeline.engine.exactly_once.producers import bounded


def test_a_call_that_does_not_return_is_given_up() -> None:
    never = threading.Event()
    with pytest.raises(KafkaException, match=r"librdkafka did not return within 0\.01 s"):
        bounded(never.wait, 0.01)
    never.set()


def test_an_error_of_the_call_is_passed_on() -> None:
    def fail() -> None:
        raise KafkaException(KafkaError(KafkaError._FENCED))

    with pytest.raises(KafkaException) as raised:
        bounded(fail, 10)
    assert raised.value.args[0].code() == KafkaError._FENCED


def test_a_call_that_returns_in_time_succeeds() -> None:
    bounded(lambda: 7, 10)


def test_another_error_is_raised_too() -> None:
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 10)
