"""`consume` ends with one line if a group may not be used; with `--until-end`, at the end of every partition.

It ends although the records before the end are invisible and new ones arrive steadily.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from headrace.cli import reading
from headrace.cli.cluster import Cluster, Offsets
from headrace.cli.failures import CommandError
from headrace.cli.positions import Position, Start
from headrace.cli.text_lines import compile_columns

END = 3


class TwoPartitions(Cluster):
    """A cluster with a topic `t` of two partitions, each of which ends at END."""

    def __init__(self) -> None:
        self.bootstrap = "b:1"

    def partitions(self, topic: str, wanted: int | None = None) -> list[int]:
        return [0, 1]

    def offsets(self, topic: str, partitions: Iterable[int]) -> dict[int, Offsets]:
        return {number: Offsets(0, END) for number in partitions}


def read(out: io.BytesIO, group: str | None = None) -> None:
    arguments = reading.Reading(
        topic="t",
        partition=None,
        start=Position(Start.BEGINNING),
        group=group,
        limit=None,
        until_end=True,
        timeout_s=None,
    )
    reading.read(TwoPartitions(), arguments, compile_columns(["value"], "", ""), out)


class Busy:
    """A consumer that polls the given offsets of both partitions in turn and never reaches an end.

    A negative offset is a marker or an aborted record, of which the application sees only the new position.
    """

    def __init__(self, offsets: Sequence[int]) -> None:
        self._coming = [(partition, offset) for offset in offsets for partition in (0, 1)]
        self._positions: dict[int, int] = {}
        self._paused: set[int] = set()

    def __call__(self, _: object) -> "Busy":
        return self

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        self._positions = {each.partition: -1001 for each in partitions}

    def poll(self, _: float) -> Message | None:
        assert self._coming, "the command goes on after its end"
        partition, offset = self._coming.pop(0)
        if partition in self._paused:
            return None
        self._positions[partition] = abs(offset) + 1
        return Message(topic="t", partition=partition, offset=offset, value=b"%d" % offset) if offset >= 0 else None

    def consume(self, _: int, timeout: float) -> list[Message]:
        return []

    def position(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        return [TopicPartition("t", each.partition, self._positions[each.partition]) for each in partitions]

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._paused.update(each.partition for each in partitions)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param((0, 1, 2), id="the last record is visible"),
        pytest.param((0, 1, 3), id="a record after the end"),
        pytest.param((0, 1, -2), id="a marker before the end"),
        pytest.param((0, 1, -4), id="an aborted record after the end"),
    ],
)
def test_it_ends_at_the_end_of_every_partition(offsets: Sequence[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Consumer", Busy(offsets))
    out = io.BytesIO()
    read(out)
    visible = [b"%d" % offset for offset in offsets if 0 <= offset < END]
    assert sorted(out.getvalue().split()) == sorted(visible * 2)


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
def test_an_unauthorized_group_is_reported_in_one_line(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "Consumer", Refused(call))
    monkeypatch.setattr(reading, "topic_exists", lambda *_: True)
    with pytest.raises(CommandError, match=r"^consuming from 't': group authorization failed \(GROUP_AUTH"):
        read(io.BytesIO(), group="g")
