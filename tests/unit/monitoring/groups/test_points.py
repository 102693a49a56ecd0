"""The points of /groups/history."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.monitoring.groups import points
from headrace.monitoring.groups.points import Wanted, series_of
from headrace.monitoring.groups.store import HistoryStore
from headrace.slices import run_all

NOW = 1_700_000_000_000
END = NOW + 10**9


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    store = HistoryStore(tmp_path / "history.db", max_bytes=64 * 1024 * 1024, retention_ms=10**9)
    yield store
    store.close()


def state(*committed: int, end: int = 100) -> bytes:
    count = len(committed)
    return array("q", [*committed, *[end] * count, *[NOW] * count]).tobytes()


def write(store: HistoryStore, second: int, **topics: bytes) -> None:
    assert not store.write_sample(NOW + second * 1000, [("g", topic, data) for topic, data in topics.items()])


def read(
    store: HistoryStore, start: int = 0, *, topic: str | None = None, partition: int | None = None
) -> list[dict[str, Any]]:
    return run_all(series_of(store, Wanted("g", topic, partition, start, END)))


def seconds(series: dict[str, Any]) -> list[int]:
    return [(point[0] - NOW) // 1000 for point in series["points"]]


def test_every_sample_has_a_point_from_the_last_change(store: HistoryStore) -> None:
    write(store, 0, t=state(10))
    write(store, 1)
    write(store, 2, t=state(30))
    write(store, 3, t=b"")
    write(store, 4)
    assert read(store) == [
        {
            "topic": "t",
            "partition": 0,
            "points": [
                [NOW, 10, 100, 90, 0.0, None, 10],
                [NOW + 1000, 10, 100, 90, 1.0, 0.0, 10],
                [NOW + 2000, 30, 100, 70, 2.0, 20.0, 30],
            ],
        }
    ]
    assert [seconds(series) for series in read(store, NOW + 1000)] == [[1, 2]]
    assert read(store, NOW + 3000) == []


def test_one_topic_or_one_partition_can_be_read(store: HistoryStore) -> None:
    write(store, 0, t=state(1, -1, 3), u=state(4))
    assert [(item["topic"], item["partition"]) for item in read(store)] == [("t", 0), ("t", 2), ("u", 0)]
    assert [(item["topic"], item["partition"]) for item in read(store, topic="t")] == [("t", 0), ("t", 2)]
    assert [(item["topic"], item["partition"]) for item in read(store, partition=0)] == [("t", 0), ("u", 0)]
    assert [read(store, partition=number) for number in (1, 7, 10**17)] == [[], [], []]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The times of all points that are made, even if they are not returned."""
    made = []
    make = points._point

    def counted(*args: Any) -> Any:
        made.append(args[1])
        return make(*args)

    monkeypatch.setattr(points, "_point", counted)
    monkeypatch.setattr(points, "MAX_POINTS", 40)
    return made


def test_only_the_samples_of_the_reply_are_read(store: HistoryStore, made: list[int]) -> None:
    write(store, 0, t=state(*[1] * 10))
    for second in range(1, 100):
        write(store, second)
    found = read(store)
    assert [seconds(series) for series in found] == [[24, 49, 74, 99]] * 10
    assert len(made) <= 80


def test_partitions_that_appear_later_do_not_exceed_the_limit(store: HistoryStore, made: list[int]) -> None:
    for second in range(90):
        write(store, second, t=state(second))
    for second in range(90, 100):
        write(store, second, t=state(*[second] * 20))
    found = read(store)
    assert len(found) == 20
    assert sum(len(series["points"]) for series in found) <= 40
    assert len(made) <= 200


def test_a_group_of_many_topics_has_two_points_for_each(store: HistoryStore, made: list[int]) -> None:
    for second in range(10):
        write(store, second, **{f"t{number}": state(second, second) for number in range(25)})
    found = read(store)
    assert len(found) == 50
    assert {len(series["points"]) for series in found} == {2}
    assert len(made) <= 200


def test_a_recent_group_has_points_at_all_of_its_samples(store: HistoryStore, made: list[int]) -> None:
    for second in range(100):
        write(store, second)
    write(store, 100, t=state(1))
    write(store, 101)
    assert [seconds(series) for series in read(store)] == [[100, 101]]


def test_a_deleted_group_with_many_partitions_has_points(store: HistoryStore, made: list[int]) -> None:
    write(store, 0, t=state(*[1] * 60))
    write(store, 1)
    for second in range(2, 50):
        write(store, second, t=b"")
    found = read(store)
    assert len(found) == 60
    assert {tuple(seconds(series)) for series in found} == {(0, 1)}


def test_topics_without_points_in_the_period_do_not_reduce_the_points(store: HistoryStore, made: list[int]) -> None:
    former = [f"former{number}" for number in range(25)]
    write(store, 0, **{topic: state(1) for topic in former}, stuck=state(1))
    write(store, 1, **dict.fromkeys(former, b""))
    for second in range(100, 120):
        write(store, second, t=state(second))
    for start in (NOW + 100_000, NOW + 2000):
        assert [(item["topic"], len(item["points"])) for item in read(store, start)] == [("stuck", 20), ("t", 20)]
