"""Several jobs in one driver: order, failures, progress."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

pytest.importorskip("pyspark")

from headrace.pipeline.engine.run import run, selected, supervisor
from headrace.pipeline.engine.scheduling.opening import found_nothing
from headrace.pipeline.engine.supervision import Policy, State
from headrace.pipeline.engine.supervisor import Supervisor
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.deployment import Deployment, JobSettings
from headrace.pipeline.spec.jobs import Additive, Append, Changelog, Job, NoParams, Table, Topic
from tests.pipeline.reading import read_all, read_committed
from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 200


def _lines(records: "DataFrame", _: object) -> "DataFrame":
    from pyspark.sql import functions as sf

    return records.select(
        sf.col("value").cast("string").alias("line"),
        sf.col("partition").alias("source_partition"),
        sf.col("offset").alias("source_offset"),
    )


def _lengths(lines: "DataFrame", _: object) -> "DataFrame":
    from pyspark.sql import functions as sf

    return lines.groupBy(sf.length("line").alias("length")).agg(sf.count("*").alias("lines"))


def _broken(lines: "DataFrame", _: object) -> "DataFrame":
    raise ZeroDivisionError("always broken")


LINES = Job(name="lines", version=1, source=Topic(), outputs=(Append(table="lines"),), function=_lines)
LENGTHS = Job(
    name="lengths",
    version=1,
    source=Table("lines"),
    outputs=(
        Additive(table="lengths", keys=("length",), sums=("lines",)),
        Changelog(topic="lengths", of="lengths"),
    ),
    function=_lengths,
)
BROKEN = replace(LENGTHS, name="broken", function=_broken, outputs=(Append(table="broken"),))
JOBS = {job.name: job for job in (BROKEN, LENGTHS, LINES)}


def test_a_re_created_topic_that_no_job_reads_is_refused() -> None:
    deployment = replace(Deployment.default(), jobs={"lines": JobSettings(topic="some,more")})

    with pytest.raises(PipelineError, match=r"--accept-new-topic others: no job .*; the jobs read more, some"):
        run(deployment, JOBS, accepted=["others"])
    with pytest.raises(PipelineError, match=r"--accept-lost others: no job .*; the jobs read more, some"):
        run(deployment, JOBS, accepted_losses=["others"])


def test_a_query_has_found_nothing_after_a_trigger_without_rows(spark: "SparkSession", tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "1.json").write_text('{"a": 1}')
    allowed = threading.Event()

    def process(_rows: "DataFrame", _number: int) -> None:
        allowed.wait(60)

    stream = spark.readStream.schema("a int").json(str(tmp_path / "rows")).writeStream
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(processingTime="1 second")
    query = stream.foreachBatch(process).start()
    try:
        wait_for(lambda: bool(query.status["isDataAvailable"]), "rows to read")
        assert not found_nothing(query)
        allowed.set()
        wait_for(lambda: found_nothing(query), "a trigger without rows")
    finally:
        allowed.set()
        query.stop()
    assert not found_nothing(None)


@dataclass
class Ran:
    """A run of all jobs with --once, and its lake."""

    supervisor: Supervisor
    succeeded: bool
    lake: Lake
    deployment: Deployment

    def status(self, job: str) -> "dict[str, object]":
        found = json.loads(Path(self.deployment.checkpoints, "status", f"{job}.json").read_text())
        return dict(found)


@pytest.fixture(scope="module")
def ran(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    directory = tmp_path_factory.mktemp("supervised")
    with BrokerProcess(directory / "broker") as broker:
        Topics(broker.bootstrap).create("log", partitions=2, config={})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for number in range(RECORDS):
            producer.produce("log", b"x" * (number % 3 + 1), partition=number % 2)
        assert producer.flush(30) == 0
        deployment = Deployment.default(broker.bootstrap, str(directory / "lake"))
        deployment = replace(deployment, jobs={"lines": JobSettings(topic="log")})
        params = {name: NoParams() for name in JOBS}
        policy = Policy(first_s=0.1, factor=1, limit=2)
        chosen = selected(deployment, JOBS, ())
        supervised = supervisor(spark, deployment, JOBS, chosen, params, once=True, policy=policy)
        succeeded = supervised.run(threading.Event())
        yield Ran(supervised, succeeded, Lake(spark, deployment.lake), deployment)


def test_a_failing_job_is_given_up_while_the_others_finish(ran: Ran) -> None:
    assert {job: standing.state for job, standing in ran.supervisor.jobs.items()} == {
        "lines": State.FINISHED,
        "lengths": State.FINISHED,
        "broken": State.FAILED,
    }
    assert not ran.succeeded


def test_a_job_reads_what_the_job_before_it_has_written_in_the_same_run(ran: Ran) -> None:
    lengths = JOBS["lengths"].outputs[0]
    assert isinstance(lengths, Additive)
    assert {row.length: row.lines for row in ran.lake.view(lengths).collect()} == {1: 67, 2: 67, 3: 66}


def test_the_consumer_group_of_a_job_on_a_table_has_offsets_of_the_topic(ran: Ran) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": ran.deployment.cluster.bootstrap})
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("headrace-lengths")])
    places = answer["headrace-lengths"].result(30).topic_partitions or []
    assert sorted((place.topic, place.partition, place.offset) for place in places) == [
        ("log", 0, RECORDS // 2),
        ("log", 1, RECORDS // 2),
    ]


def test_the_changelog_has_the_totals(ran: Ran) -> None:
    published = read_committed(ran.deployment.cluster.bootstrap, "lengths")
    assert sorted((record.key, record.value["lines"]) for record in published) == [("1", 67), ("2", 67), ("3", 66)]


def test_a_status_has_batch_and_lag_of_a_finished_job_and_the_reason_of_a_failed_one(ran: Ran) -> None:
    status = ran.status("lines")
    assert (status["state"], status["batch"], status["input_rows"], status["lag"]) == ("finished", 0, RECORDS, 0)
    status = ran.status("broken")
    assert (status["state"], status["failures"], status["last_failure"]) == ("failed", 2, "always broken")


def test_every_job_has_its_own_file_for_prometheus(ran: Ran) -> None:
    directory = Path(ran.deployment.checkpoints, "status")
    files = {file.stem.removeprefix("job-"): file.read_text() for file in directory.glob("*.prom")}
    assert files.keys() == {"lines", "lengths", "broken"}
    assert 'headrace_pipeline_lag_records{job="lines"} 0.0' in files["lines"]
    assert 'headrace_pipeline_failed{job="broken"} 1.0' in files["broken"]
    assert all(f'job="{other}"' not in text for name, text in files.items() for other in files if other != name)


def test_the_table_of_runs_has_a_row_for_each_batch(ran: Ran) -> None:
    rows = ran.lake.read("runs").orderBy("job").collect()
    assert [(row.job, row.batch, row.input_rows, row.lag) for row in rows] == [
        ("lengths", 0, RECORDS, None),
        ("lines", 0, RECORDS, 0),
    ]
    assert all(row.duration_ms >= row.durations_ms["tables"] > 0 for row in rows)


def test_the_last_progress_of_each_job_is_in_the_topic(ran: Ran) -> None:
    records = read_all(ran.deployment.cluster.bootstrap, "headrace.pipeline.progress")
    assert {record.key: record.value["state"] for record in records} == {
        "lines": "finished",
        "lengths": "finished",
        "broken": "failed",
    }
