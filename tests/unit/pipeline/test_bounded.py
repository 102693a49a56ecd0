"""Calls that may never return."""

import threading

import pytest
from confluent_kafka import KafkaException

from headrace.pipeline.engine.exactly_once.producers import bounded


def test_a_call_that_does_not_return_is_given_up() -> None:
    never = threading.Event()
    with pytest.raises(KafkaException, match=r"librdkafka did not return within 0\.01 s"):
        bounded(never.wait, 0.01)
    never.set()


def test_a_call_that_returns_in_time_succeeds_or_fails_with_its_own_error() -> None:
    bounded(lambda: 7, 10)
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, 10)
