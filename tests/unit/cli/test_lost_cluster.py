"""Errors of the client library end commands with one line."""

import io
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace.cli import group_calls, group_report, group_timeline, reading
from headrace.cli.cluster import Cluster, Offsets
from headrace.cli.failures import CommandError
from headrace.cli.positions import Position, Start
from headrace.cli.text_lines import Formatter


class Lost(Cluster):
    """A cluster that was lost after the connection."""

    def __init__(self) -> None:
        self.bootstrap = "b:1"
        self.admin = cast(Any, SimpleNamespace(list_topics=self._list_topics))

    def _list_topics(self, **_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))


def test_the_brokers_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_calls, "describe_groups", lambda *_: {})
    with pytest.raises(CommandError, match=r"^listing brokers: no reply from b:1$"):
        group_timeline.timeline(Lost(), "g", 0, 1, 10, None)  # of a deleted group
    with pytest.raises(CommandError, match=r"^listing brokers: no reply from b:1$"):
        group_report.assumed_reset(Lost(), None, None)


class OneTopic(Lost):
    """A cluster with a topic `t` of one partition."""

    def partitions(self, topic: str, wanted: int | None = None) -> list[int]:
        return [0]

    def offsets(self, topic: str, partitions: object) -> dict[int, Offsets]:
        return {0: Offsets(0, 1)}


class Refused:
    """A consumer whose `refused` method fails; its group assigns the partition in the first poll."""

    def __init__(self, refused: str) -> None:
        self._refused = refused

    def __call__(self, _: object) -> "Refused":
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*_: object, **__: object) -> Any:
            if name == self._refused:
                raise KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
            return []

        return call

    def subscribe(self, _: object, on_assign: Callable[..., None], on_revoke: object) -> None:
        self._on_assign = on_assign

    def poll(self, _: float) -> None:
        self._on_assign(self, [TopicPartition("t", 0)])


@pytest.mark.parametrize("call", ["committed", "assign"])
def test_a_group_that_may_not_be_used(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Consumer", Refused(call))
    monkeypatch.setattr(reading, "topic_exists", lambda *_: True)
    consumed = reading.Reading(
        topic="t",
        partition=None,
        start=Position(Start.BEGINNING),
        group="g",
        limit=None,
        until_end=True,
        timeout_s=None,
    )
    with pytest.raises(CommandError, match=r"^consuming from 't': group authorization failed \(GROUP_AUTH"):
        reading.read(OneTopic(), consumed, cast(Formatter, bytes), io.BytesIO())
