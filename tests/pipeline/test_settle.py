"""Requests too late for a query are counted from the archive."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.topics import Topics
from tests.pipeline.reading import latest, read_all
from tests.support.broker_process import BrokerProcess
from tests.support.spark import log_records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _lines(spark: "SparkSession", times: list[str]) -> "DataFrame":
    from headrace.pipeline.transforms import lines

    texts = [f'192.0.2.1 - - [17/May/2015:{time} +0000] "GET /a HTTP/1.1" 200 7' for time in times]
    return lines.parsed(log_records(spark, texts))


def _crash(*_: Any) -> None:
    raise InterruptedError


def test_late_requests_are_counted_once_even_after_a_crash(
    broker: BrokerProcess, spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.pipeline.jobs.access_log import EVENTS, LATE_BY, PAGE_VIEWS
    from headrace.pipeline.jobs.place import Place
    from headrace.pipeline.jobs.settle import settle
    from headrace.pipeline.jobs.sink import Cluster, Sink
    from headrace.pipeline.transforms import lines, traffic

    cluster, place = Cluster(bootstrap=broker.bootstrap), Place(directory=tmp_path)
    for topic in ("page-views-per-minute", "request-rate-per-minute", "crawlers-per-hour"):
        Topics(broker.bootstrap).create(topic, partitions=2, config={})
    all_events = lines.events(_lines(spark, ["10:00:01", "11:00:00", "10:00:02", "09:00:00"]))
    in_time = lines.events(_lines(spark, ["10:00:01", "11:00:00"]))
    Sink(EVENTS, "archive/events", place.table("events"), cluster).write(all_events, 0)
    views = traffic.page_views_per_minute(in_time, LATE_BY)
    Sink(PAGE_VIEWS, "page-views/views", place.table("page_views_per_minute"), cluster).write(views, 0)

    with monkeypatch.context() as patch:
        patch.setattr(Sink, "_records", _crash)
        with pytest.raises(InterruptedError):
            settle(spark, cluster, place)
    settle(spark, cluster, place)
    settle(spark, cluster, place)

    records = read_all(broker.bootstrap, "page-views-per-minute")
    assert {key: row["views"] for key, row in latest(records).items()} == {
        "2015-05-17T09:00:00Z /a": 1,
        "2015-05-17T10:00:00Z /a": 2,
        "2015-05-17T11:00:00Z /a": 1,
    }
    corrections = [r.key for r in records if r.headers["job"] == "settle/page_views_per_minute"]
    assert sorted(corrections) == ["2015-05-17T09:00:00Z /a", "2015-05-17T10:00:00Z /a"]
    assert len(read_all(broker.bootstrap, "request-rate-per-minute")) == 3
