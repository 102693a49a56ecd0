"""A batch is written again after a crash between the table and the topic."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from headrace.pipeline.topics import Topics
from tests.pipeline.reading import latest, read_all
from tests.support.broker_process import BrokerProcess
from tests.support.spark import frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.jobs.sink import Sink

FIRST = [("/a", 1), ("/b", 2)]
SECOND = [("/a", 5), ("/c", 3), ("/d", 1)]


class Place:
    """A table and a topic with one writer; `sink()` restarts it, as after a crash."""

    def __init__(self, spark: "SparkSession", bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self._spark = spark
        self._path = str(directory / "table")
        Topics(bootstrap).create("views", partitions=2, config={})

    def sink(self) -> "Sink":
        from headrace.pipeline.jobs.job import Output
        from headrace.pipeline.jobs.sink import Cluster, Sink

        output = Output(table="views", keys=("page",), topic="views")
        return Sink(output, "views/views", self._path, Cluster(bootstrap=self.bootstrap))

    def rows(self, rows: list[tuple[str, int]]) -> "DataFrame":
        named = [{"page": page, "views": views} for page, views in rows]
        return frame(self._spark, named, "page: string, views: bigint")

    def table(self) -> dict[str, int]:
        return {row.page: row.views for row in self._spark.read.format("delta").load(self._path).collect()}

    def versions(self) -> int:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(self._spark, self._path).history().count()

    def published(self) -> list[tuple[str, str, int]]:
        return sorted((r.headers["batch"], r.key, r.value["views"]) for r in read_all(self.bootstrap, "views"))


@pytest.fixture
def place(spark: "SparkSession", broker: BrokerProcess, tmp_path: Path) -> Place:
    return Place(spark, broker.bootstrap, tmp_path)


BOTH = [("0", "/a", 1), ("0", "/b", 2), ("1", "/a", 5), ("1", "/c", 3), ("1", "/d", 1)]


def _crash_before_publishing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.sink()
    sink.write(place.rows(FIRST), 0)
    with monkeypatch.context() as patch:
        patch.setattr(sink, "_records", _crash)
        with pytest.raises(InterruptedError):
            sink.write(place.rows(SECOND), 1)
    assert place.table() == {"/a": 5, "/b": 2, "/c": 3, "/d": 1}
    assert len(place.published()) == 2


def _crash_while_publishing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    _crash_before_publishing(place, monkeypatch)
    producer = Producer({"bootstrap.servers": place.bootstrap})
    producer.produce("views", b'{"page":"/c","views":3}', b"/c", headers={"job": "views/views", "batch": "1"})
    # records of other writers do not count, whatever their key
    producer.produce("views", b'{"views":0}', b"/d", headers={"job": "someone else", "batch": "1"})
    producer.produce("views", b'{"views":0}', b"/d", headers={"batch": "1"})
    assert producer.flush(10) == 0


def _crash_after_publishing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = place.sink()
    sink.write(place.rows(FIRST), 0)
    sink.write(place.rows(SECOND), 1)


@pytest.mark.parametrize("crash", [_crash_before_publishing, _crash_while_publishing, _crash_after_publishing])
def test_a_repeated_batch_adds_the_missing_records(
    place: Place, monkeypatch: pytest.MonkeyPatch, crash: Callable[[Place, pytest.MonkeyPatch], None]
) -> None:
    crash(place, monkeypatch)
    versions = place.versions()
    place.sink().write(place.rows(SECOND), 1)
    ours = [r for r in read_all(place.bootstrap, "views") if r.headers.get("job") == "views/views"]
    assert sorted((r.headers["batch"], r.key, r.value["views"]) for r in ours) == BOTH
    assert {key: value["views"] for key, value in latest(ours).items()} == place.table()
    assert place.versions() == versions


def test_an_empty_batch_leaves_no_trace(place: Place) -> None:
    place.sink().write(place.rows(FIRST), 0)
    assert place.sink().write(place.rows([]), 1) == 0
    assert (place.versions(), len(place.published())) == (1, 2)


def _crash(*_: Any) -> None:
    raise InterruptedError
