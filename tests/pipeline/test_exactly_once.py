"""Jobs whose driver is killed in the middle of their batches resume and publish every result once."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.pipeline.demo.deployment import ACCESS_LOG, demo_jobs
from headrace.pipeline.demo.processes import DriverProcess
from headrace.pipeline.demo.shipping.shipper import Shipper
from headrace.pipeline.spec.jobs import Additive, Changelog, Publish
from tests.pipeline.reading import latest, read_committed, requests_per_minute
from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS_S = 400.0

pytestmark = pytest.mark.slow


def test_jobs_of_a_killed_driver_publish_every_result_once(
    broker: BrokerProcess, spark: "SparkSession", access_log: Path, tmp_path: Path
) -> None:
    from headrace.pipeline.engine.tables.lake import Lake

    directory = str(tmp_path / "lake")
    lines = [line.rstrip(b"\n") for line in access_log.open("rb")]
    topics = Topics(broker.bootstrap)
    topics.create(ACCESS_LOG, partitions=3, config={"retention.ms": "-1"})
    shipper = Shipper(broker.bootstrap, ACCESS_LOG, topics.end_offsets(ACCESS_LOG))

    _ship(shipper, [*lines[:5000], b"torn"])
    with _driver(broker.bootstrap, directory, tmp_path / "spark.log") as killed:
        # The other jobs are in the middle of their batches. test_query.py tests every point of a batch.
        wait_for(lambda: _end(broker.bootstrap, "status-codes"), "results", timeout_s=STARTS_S)
        os.killpg(killed.pid, signal.SIGKILL)
        wait_for(lambda: not list(killed.events()) and killed.ended(), "the end of the driver")
    _ship(shipper, lines[5000:])
    with _driver(broker.bootstrap, directory, tmp_path / "spark.log") as last:
        report = _run_to_the_end(last)

    lake = Lake(spark, directory)
    assert (report["requests"], report["clients"]) == (10_000, 1_753)
    assert report["page_views"] == {"views": 4050, "pages": 805}
    assert [(row["job"], row["count"]) for row in report["quarantined"]] == [("events", 1)]
    events = lake.read("events")
    assert events.select("source_partition", "source_offset").distinct().count() == events.count() == 10_000
    assert lake.read("raw").select("partition", "offset").distinct().count() == lake.read("raw").count() == 10_001
    for job in demo_jobs(bootstrap=broker.bootstrap, lake=directory).jobs.values():
        tables = {output.table: output for output in job.outputs if not isinstance(output, Changelog | Publish)}
        for output in job.outputs:
            if not isinstance(output, Changelog):
                continue
            records = read_committed(broker.bootstrap, output.topic)
            repeated = [seen for seen, times in Counter(r.identity for r in records).items() if times > 1 and seen[2]]
            assert repeated == [], output.topic
            table = tables[output.of]
            rows = lake.view(table) if isinstance(table, Additive) else lake.read(output.of)
            published = len(latest(records)) if getattr(table, "keys", ()) else len(records)
            assert published == rows.count(), output.topic
    traffic = latest(read_committed(broker.bootstrap, "traffic"))
    assert {key: row["requests"] for key, row in traffic.items()} == requests_per_minute(access_log)


@contextmanager
def _driver(bootstrap: str, lake: str, log: Path) -> Iterator[DriverProcess]:
    driver = DriverProcess(bootstrap, lake, log)
    try:
        yield driver
    finally:
        driver.stop()


def _end(bootstrap: str, topic: str) -> int:
    """Return the end of a topic, which a job creates when it starts; 0 before."""
    from headrace.pipeline.errors import PipelineError

    try:
        return sum(Topics(bootstrap).end_offsets(topic).values())
    except PipelineError:
        return 0


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

    return wait_for(reported, "the report", timeout_s=STARTS_S, interval_s=0.1) or {}
