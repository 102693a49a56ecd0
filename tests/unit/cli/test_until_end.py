"""`consume --until-end` ends although the records before the end are invisible and new ones arrive steadily."""

import io
from collections.abc import Iterable, Sequence

import pytest
from confluent_kafka import Message, TopicPartition

from headrace.cli import reading
from headrace.cli.cluster import Cluster, Offsets
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
    arguments = reading.Reading(
        topic="t",
        partition=None,
        start=Position(Start.BEGINNING),
        group=None,
        limit=None,
        until_end=True,
        timeout_s=None,
    )
    out = io.BytesIO()
    reading.read(TwoPartitions(), arguments, compile_columns(["value"], "", ""), out)
    visible = [b"%d" % offset for offset in offsets if 0 <= offset < END]
    assert sorted(out.getvalue().split()) == sorted(visible * 2)
