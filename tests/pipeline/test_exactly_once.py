"""Queries killed in the middle of a batch resume from their checkpoints and publish every result once."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.pipeline.demo.processes import DriverProcess
from headrace.pipeline.demo.shipper import Shipper
from headrace.pipeline.topics import ACCESS_LOG, Topics
from tests.pipeline.reading import latest, read_all, requests_per_minute
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS_S = 400.0
CHANGELOGS = {
    "page-views-per-minute": "page_views_per_minute",
    "request-rate-per-minute": "request_rate_per_minute",
    "status-codes": "status_codes",
    "top-pages": "top_pages",
    "crawlers-per-hour": "crawlers_per_hour",
}


def test_a_killed_query_publishes_every_result_once(
    broker: BrokerProcess, spark: "SparkSession", access_log: Path, tmp_path: Path
) -> None:
    data, log = tmp_path / "pipeline", tmp_path / "spark.log"
    lines = [line.rstrip(b"\n") for line in access_log.open("rb")]
    topics = Topics(broker.bootstrap)
    topics.create(ACCESS_LOG, partitions=3, config={"retention.ms": "-1"})
    shipper = Shipper(broker.bootstrap, ACCESS_LOG)

    _ship(shipper, [*lines[:5000], b"torn"])
    killed = DriverProcess(broker.bootstrap, data, "", log)
    try:
        # The first results appear in the topic before Spark commits their batch, which is therefore repeated.
        # test_sink.py tests every point of such a crash.
        results = "page-views-per-minute"
        wait_for(lambda: any(topics.end_offsets(results).values()), "results", timeout_s=STARTS_S)
        os.killpg(killed.pid, signal.SIGKILL)
        wait_for(lambda: not list(killed.events()) and killed.ended(), "the end of the driver")
    finally:
        killed.stop()

    _ship(shipper, lines[5000:])
    report = _run_to_the_end(DriverProcess(broker.bootstrap, data, "", log))

    assert (report["requests"], report["clients"], report["rejected"]) == (10_000, 1_753, 1)
    archived = spark.read.format("delta").load(str(data / "tables" / "events"))
    assert archived.select("source_partition", "source_offset").distinct().count() == archived.count() == 10_000
    for topic, table in CHANGELOGS.items():
        records = read_all(broker.bootstrap, topic)
        assert [seen for seen, times in Counter(r.identity for r in records).items() if times > 1] == [], topic
        stored = spark.read.format("delta").load(str(data / "tables" / table))
        assert len(latest(records)) == stored.count(), topic
    rate = latest(read_all(broker.bootstrap, "request-rate-per-minute"))
    assert {key: row["requests"] for key, row in rate.items()} == requests_per_minute(access_log)
    views = latest(read_all(broker.bootstrap, "page-views-per-minute"))
    stored_views = spark.read.format("delta").load(str(data / "tables" / "page_views_per_minute"))
    assert sum(row["views"] for row in views.values()) == stored_views.groupBy().sum("views").collect()[0][0]
    assert [r.value["line"] for r in read_all(broker.bootstrap, "access-log.rejected")] == ["torn"]


def _ship(shipper: Shipper, lines: list[bytes]) -> None:
    for line in lines:
        shipper.ship(line)
    shipper.flush()


def _run_to_the_end(driver: DriverProcess) -> dict[str, Any]:
    driver.finish()
    events: list[dict[str, Any]] = []

    def reported() -> dict[str, Any] | None:
        events.extend(driver.events())
        assert driver.ended() in (None, "exit status 0"), events
        return next((event for event in events if event["event"] == "report"), None)

    try:
        return wait_for(reported, "the report", timeout_s=STARTS_S, interval_s=0.1) or {}
    finally:
        driver.stop()
