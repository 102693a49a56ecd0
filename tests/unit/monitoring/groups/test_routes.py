"""JSON routes of large groups: no step holds the event loop for long."""

import threading
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from headrace.coordinator.groups.effects import Happening, Note
from headrace.coordinator.groups.group import Group, MemberView
from headrace.monitoring.groups import points, routes
from headrace.monitoring.groups.progress import from_bytes
from headrace.monitoring.groups.rebalances import timeline_of
from headrace.monitoring.groups.recorder import GroupHistory
from headrace.monitoring.groups.routes import GroupRoutes
from headrace.monitoring.groups.sampler import GroupSampler
from headrace.monitoring.groups.standing import Standing, total_of
from headrace.slices import Steps, run_all
from tests.unit.coordinator.fake_topics import FakeTopics

P = ParamSpec("P")
T = TypeVar("T")

NOW = 1_700_000_000_000
STEP = 200
"""Maximum number of partitions in a step."""


class Read:
    """Counts the items that were read since the last step ended."""

    def __init__(self) -> None:
        self.count = self.most = 0

    def counted(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self.count += 1
            self.most = max(self.most, self.count)
            yield item

    def steps(self, steps: Steps[T]) -> Generator[None, None, T]:
        while True:
            self.count = 0
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
            yield


def standing(partition: int) -> Standing:
    return Standing(partition, partition, 0, 10_000, NOW - partition, partition % 7, partition % 5)


def test_partitions_are_described_in_steps() -> None:
    read = Read()
    items = [standing(partition) for partition in range(1000)]
    standings = {"t": read.counted(items), "s": read.counted(items[:3]), "empty": iter(())}
    owners = {("t", 1): "m"}
    totals, rows = run_all(read.steps(routes._partitions(standings, owners, NOW)))
    assert read.most <= STEP + 3
    expected = total_of(items)
    assert totals["t"]._replace(pace=0, arrival=0) == expected._replace(pace=0, arrival=0)
    assert totals["t"].pace == pytest.approx(expected.pace)
    assert totals["empty"] == total_of([])
    assert [(row["topic"], row["partition"]) for row in rows] == [
        *(("s", partition) for partition in range(3)),
        *(("t", partition) for partition in range(1000)),
    ]
    assert [row["partition"] for row in rows if row["member_id"] == "m"] == [1]


class LargeGroup:
    """Has many members."""

    def __init__(self, members: Iterable[MemberView]) -> None:
        self._members = members

    def members_seen(self) -> Iterator[MemberView]:
        yield from self._members


def view(number: int, *partitions: int) -> MemberView:
    return MemberView(
        member_id=f"m{number}",
        instance_id=None,
        client_id="app",
        host="h",
        is_waited_for=False,
        partitions={"t": partitions} if partitions else {},
    )


def test_members_are_described_in_steps() -> None:
    read = Read()
    views = [view(number, number) for number in range(100)]
    group: Group = LargeGroup(read.counted(views))  # type: ignore[assignment]
    members, owners = run_all(read.steps(routes._members(group)))
    assert read.most <= 2
    assert members[7] == {
        "member_id": "m7",
        "instance_id": None,
        "client_id": "app",
        "host": "h",
        "is_waited_for": False,
        "partitions": {"t": (7,)},
    }
    assert owners == {("t", number): f"m{number}" for number in range(100)}


async def test_the_event_loop_reads_no_history_and_builds_no_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def traced(function: Callable[P, T]) -> Callable[P, T]:
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            threads.append(threading.current_thread())
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(points, "from_bytes", traced(from_bytes))
    monkeypatch.setattr(routes, "timeline_of", traced(timeline_of))
    history = GroupHistory(tmp_path / "history.db", interval_ms=1000, retention_ms=10**9, max_bytes=10**8)
    history.sampler = GroupSampler(list, FakeTopics(), lambda _topic, _index: None)
    assert not history.store.write_sample(NOW, [("g", "t", array("q", [40, 100, NOW]).tobytes())])
    history.observe("g", Note(what=Happening.JOINED, generation=1, member_id="m"), NOW)
    answer: Any = await GroupRoutes(history).history({"group": "g", "from": "0"})
    assert answer["series"] == [{"topic": "t", "partition": 0, "points": [[NOW, 40, 100, 60, 0.0, None, 40]]}]
    answer = await GroupRoutes(history).timeline({"group": "g", "from": "0"})
    assert [event["event"] for event in answer["events"]] == ["joined"]
    assert len(threads) == 2
    assert threading.main_thread() not in threads
    await history.stop()
