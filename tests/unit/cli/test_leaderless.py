"""Commands show partitions without a leader, whose leader confluent-kafka gives as None."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.cli import topic_report
from headrace.cli.cluster import Cluster
from headrace.cli.hanging import partitions
from headrace.cli.offset_plan import Selection

ONE, TWO = SimpleNamespace(id=1), SimpleNamespace(id=2)


class Brokers:
    """A cluster with a topic of two partitions, the second one without a leader."""

    def describe(self, _: object) -> list[Any]:
        led = SimpleNamespace(id=0, leader=ONE, replicas=[ONE, TWO], isr=[ONE])
        leaderless = SimpleNamespace(id=1, leader=None, replicas=[TWO], isr=[TWO])
        return [SimpleNamespace(name="t", topic_id="x", is_internal=False, partitions=[led, leaderless])]

    def topic_names(self) -> list[str]:
        return ["t"]

    def offsets(self, _: str, wanted: dict[int, int]) -> dict[int, Any]:
        return {partition: SimpleNamespace(earliest=0, latest=5) for partition in wanted}


def test_a_topic_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_report, "_configs", lambda *_: {"t": []})
    monkeypatch.setattr(topic_report, "_sizes", lambda *_: {})
    [topic] = topic_report.report(cast(Cluster, Brokers()), ["t"])
    found = [(one.leader, one.replicas, one.records) for one in topic.partitions]
    assert found == [(1, [1, 2], 5), (None, [2], None)]


def test_hanging_transactions_are_searched_elsewhere() -> None:
    assert partitions(cast(Cluster, Brokers()), Selection({}), None) == ([("t", 0)], [("t", 1)])
