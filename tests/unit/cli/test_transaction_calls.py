"""Errors of the requests of `headrace transactions`."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.errors import NotLeaderForPartitionError, UnknownTopicOrPartitionError

from headrace.cli import transaction_calls
from headrace.cli.cluster import Cluster
from headrace.cli.failures import CommandError

REFUSED = f"DescribeProducersRequest failed for {TopicPartition('t', 7)}: None"
NINE = [("t", number) for number in range(9)]


@pytest.mark.parametrize(
    ("error", "places", "broker", "what"),
    [
        (NotLeaderForPartitionError(REFUSED), NINE, None, "the leader does not have t:7 (NOT_LEADER_FOR_PARTITION)"),
        (
            UnknownTopicOrPartitionError("unknown"),
            NINE,
            2,
            "broker 2 does not have all of t:0, t:1, t:2 and 6 more (UNKNOWN_TOPIC_OR_PARTITION)",
        ),
        (
            UnknownTopicOrPartitionError("unknown"),
            NINE[:1],
            2,
            "broker 2 does not have t:0 (UNKNOWN_TOPIC_OR_PARTITION)",
        ),
    ],
)
def test_a_broker_without_a_partition(
    error: Exception, places: list[tuple[str, int]], broker: int | None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe_producers(*_: object, **__: object) -> None:
        raise error

    @contextmanager
    def admin(*_: object) -> Iterator[Any]:
        yield SimpleNamespace(describe_producers=describe_producers)

    monkeypatch.setattr(transaction_calls, "python_admin", admin)
    with pytest.raises(CommandError) as raised:
        transaction_calls.describe_producers(cast(Cluster, None), places, broker)
    assert raised.value.what == f"describing producers: {what}"
