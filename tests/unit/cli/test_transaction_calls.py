"""Errors of the requests of `headrace transactions`."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.errors import IncompatibleBrokerVersion, NotLeaderForPartitionError, UnknownTopicOrPartitionError
from typer.testing import CliRunner

from headrace.cli import transaction_calls
from headrace.cli.cluster import Cluster
from headrace.cli.failures import CommandError
from headrace.cli.main import app
from headrace.cli.transaction_calls import Producer

REFUSED = f"DescribeProducersRequest failed for {TopicPartition('t', 7)}: None"
UNKNOWN = UnknownTopicOrPartitionError("unknown")
NINE = [("t", number) for number in range(9)]
OLD: Any = SimpleNamespace(bootstrap="b:1", partitions=lambda *_: [0])


def admin_that_raises(error: Exception) -> Callable[..., AbstractContextManager[Any]]:
    def refuse(*_: object, **__: object) -> None:
        raise error

    return lambda *_: nullcontext(SimpleNamespace(list_transactions=refuse, describe_producers=refuse))


old_admin = admin_that_raises(IncompatibleBrokerVersion("ListTransactionsRequest"))
"""The admin client for brokers without DescribeProducers and the requested version of ListTransactions."""


def run(line: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(Cluster, "connect", lambda _: OLD)
    return CliRunner().invoke(app, ["transactions", *line.split(), "--bootstrap", "b:1"])


@pytest.mark.parametrize(
    ("error", "places", "broker", "what"),
    [
        (NotLeaderForPartitionError(REFUSED), NINE, None, "the leader does not have t:7 (NOT_LEADER_FOR_PARTITION)"),
        (UNKNOWN, NINE, 2, "broker 2 does not have all of t:0, t:1, t:2 and 6 more (UNKNOWN_TOPIC_OR_PARTITION)"),
        (UNKNOWN, NINE[:1], 2, "broker 2 does not have t:0 (UNKNOWN_TOPIC_OR_PARTITION)"),
    ],
)
def test_a_broker_without_a_partition(
    error: Exception, places: list[tuple[str, int]], broker: int | None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_calls, "python_admin", admin_that_raises(error))
    with pytest.raises(CommandError) as raised:
        transaction_calls.describe_producers(cast(Cluster, None), places, broker)
    assert raised.value.what == f"describing producers: {what}"


@pytest.mark.parametrize(
    ("filters", "what", "since"),
    [
        ({"producer_ids": [7], "states": ["Ongoing"]}, "list transactions", "3.0"),
        ({"longer_than_ms": 0}, "filter transactions by --longer-than", "3.8"),
        ({"pattern": "a.*", "longer_than_ms": 5}, "filter transactions by --pattern", "4.1"),
    ],
)
def test_brokers_that_are_too_old_to_list(
    filters: dict[str, Any], what: str, since: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_calls, "python_admin", old_admin)
    with pytest.raises(CommandError) as raised:
        transaction_calls.list_transactions(OLD, **filters)
    assert raised.value.what == f"the brokers at b:1 cannot {what}"
    assert f"Apache Kafka {since} or later" in str(raised.value.hint)
    # Nothing is left to filter if the brokers cannot list transactions.
    assert ("filter the output" in str(raised.value.hint)) == ("filter" in what)


def test_a_transaction_is_aborted_on_brokers_that_cannot_list_it(monkeypatch: pytest.MonkeyPatch) -> None:
    aborted: list[Any] = []
    monkeypatch.setattr(transaction_calls, "python_admin", old_admin)
    monkeypatch.setattr(transaction_calls, "abort", lambda _, *given: aborted.append(given))
    results = [
        run(f"abort t:0 --producer-id 7 --producer-epoch 2 --yes {quiet}", monkeypatch) for quiet in ("", "--quiet")
    ]
    assert [result.exit_code for result in results] == [0, 0]
    assert aborted == [(("t", 0), 7, 2, 0)] * 2
    assert ["whether this transaction is hanging" in result.stderr for result in results] == [True, False]


def test_the_start_offset_is_unknown_on_brokers_that_cannot_describe_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_calls, "python_admin", old_admin)
    result = run("abort t:0 --start-offset 5 --yes", monkeypatch)
    assert result.exit_code == 1
    assert "the brokers at b:1 cannot describe producers\nThis needs Apache Kafka 3.0" in result.stderr


@pytest.mark.parametrize(
    ("producer_id", "epoch", "is_aborted"),
    [
        (5, 2, False),  # has not written to the partition
        (6, 2, False),  # has no open transaction
        (7, 2, True),
        (6, 1, True),  # left to the leader, which refuses an epoch that is out of date
    ],
)
def test_a_producer_without_an_open_transaction_is_not_aborted(
    producer_id: int, epoch: int, is_aborted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    producers = [Producer(6, 2, 0, 9, 0, None), Producer(7, 2, 0, 9, 0, 3)]
    aborted: list[Any] = []
    monkeypatch.setattr(transaction_calls, "describe_producers", lambda *_: {("t", 0): producers})
    monkeypatch.setattr(transaction_calls, "holder", lambda *_: None)
    monkeypatch.setattr(transaction_calls, "abort", lambda _, *given: aborted.append(given))
    result = run(f"abort t:0 --producer-id {producer_id} --producer-epoch {epoch} --yes", monkeypatch)
    assert bool(aborted) == is_aborted
    assert result.exit_code == (0 if is_aborted else 1)
    assert (f"producer {producer_id} has no open transaction in t:0" in result.stderr) != is_aborted
