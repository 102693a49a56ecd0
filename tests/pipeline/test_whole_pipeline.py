"""Two real logs and one with known truth, through a broker and all jobs, each of which dies once on the way.

`make test` sends a short log through two jobs that die.
"""

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from confluent_kafka import Producer

from headrace.pipeline.generate.files import truth_files
from headrace.pipeline.generate.log import log
from headrace.pipeline.generate.parameters import Parameters
from headrace.pipeline.jobs import activity, archive, crawlers, events
from headrace.pipeline.spec import client_settings
from headrace.pipeline.spec.deployment import Deployment, JobSettings
from headrace.pipeline.spec.jobs import Changelog, Job, Publish, job_of
from tests.pipeline.log_lines import combined
from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headrace.pipeline.report import Differences

JOBS: Final[Mapping[str, Job]] = {
    found.name: found
    for module in (archive, events, activity, crawlers)
    for var in vars(module).values()
    if callable(var) and (found := job_of(var)) is not None
}
# Every batch passes these, also one that publishes nothing.
KILL_POINTS: Final = ("before-ledger", "after-table", "before-commit")
PARTITIONS: Final = 3
# Its request comes last, in the far future, so that all sessions of others have ended.
END: Final = combined("/end", client="end", time="31/Dec/2037:00:00:00 +0000")
TIMES: Final = ("hour", "day", "minute")
HLL_ERROR: Final = 0.048
"""Three times the standard error of HLL with lgK 12."""
SHORT, LONG = 1_500, 6_000
"""Lines of generated logs, of 50 minutes and of three hours."""


class KilledError(Exception):
    """The driver died here."""


@dataclass
class Pipeline:
    """A topic, the jobs that read it, and their lake."""

    spark: "SparkSession"
    bootstrap: str
    topic: str
    lake: str
    jobs: tuple[str, ...] = tuple(JOBS)
    params: Mapping[str, Mapping[str, object]] | None = None
    max_rows: int = 5_500
    died: frozenset[str] = frozenset()
    """The jobs that died on the way."""

    def run(self, *jobs: str) -> None:
        """Let these jobs, or all, process everything that is in the topic."""
        from headrace.pipeline.engine import run
        from headrace.pipeline.engine.supervision import Policy

        given = self.params or {}
        settings = JobSettings(topic=self.topic, trigger="0 seconds", max_rows=self.max_rows)
        deployment = Deployment(
            cluster=client_settings.plain(self.bootstrap),
            lake=self.lake,
            checkpoints=f"{self.lake}/_checkpoints",
            jobs={name: replace(settings, params=given.get(name, {})) for name in JOBS},
        )
        chosen = run.selected(deployment, JOBS, jobs or self.jobs)
        params = {name: deployment.params(job) for name, job in chosen.items()}
        supervisor = run.supervisor(
            self.spark, deployment, JOBS, chosen, params, once=True, policy=Policy(first_s=0.1, factor=1.0)
        )
        assert supervisor.run(threading.Event()), {name: each.reason for name, each in supervisor.jobs.items()}

    def send(self, records: "list[tuple[int, bytes]]") -> None:
        """Send lines, and the last request to every partition."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5})
        ends = [(partition, END.encode()) for partition in range(PARTITIONS)]
        for partition, line in records + ends:
            producer.produce(self.topic, line, b"key", partition)
            producer.poll(0)
        assert producer.flush(60) == 0

    def table(self, name: str) -> "DataFrame":
        """Return the rows of a table, without those of the last request if they have a client or a time."""
        from headrace.pipeline.engine.tables.lake import Lake

        lake, output = Lake(self.spark, self.lake), JOBS[name].outputs[0] if name in JOBS else None
        rows = lake.read(name) if output is None or isinstance(output, Changelog | Publish) else lake.view(output)
        conditions = [f"year({name}) < 2037" for name in TIMES if name in rows.columns]
        conditions += ["client != 'end'"] if "client" in rows.columns else []
        return rows.where(" AND ".join(conditions)) if conditions else rows

    def versions(self, name: str) -> int:
        return len(list((Path(self.lake) / name / "_delta_log").glob("*.json")))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cluster") / "broker") as process:
        yield process


@pytest.fixture(scope="module")
def kills() -> Iterator[Counter[str]]:
    """Let every query die once, at a random point of its first or second batch; count the deaths by job."""
    from headrace.pipeline.engine import run
    from headrace.pipeline.engine.query import Query

    died: Counter[str] = Counter()
    seed = random.randrange(1_000_000)
    print(f"{seed = }")
    chance = random.Random(seed)

    def killed(job: Job, *args: Any, **kwargs: Any) -> Query:
        # The pages of a ranking come in one batch.
        point, batch = chance.choice(KILL_POINTS), 0 if job.name == "top_pages" else chance.randrange(2)
        passed: Counter[str] = Counter()

        def reached(name: str) -> None:
            passed[name] += 1
            if name == point and passed[name] > batch and not died[job.name]:
                died[job.name] += 1
                raise KilledError(point)

        return Query(job, *args, **kwargs, reached=reached)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run, "Query", killed)
        yield died


@pytest.fixture(scope="module")
def start(
    spark: "SparkSession", cluster: BrokerProcess, kills: Counter[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Pipeline]:
    """Return a function that makes a pipeline whose topic has no records yet."""

    def make(topic: str, **options: Any) -> Pipeline:
        kills.clear()
        Topics(cluster.bootstrap).create(topic, partitions=PARTITIONS, config={})
        lake = tmp_path_factory.mktemp(topic) / "lake"
        return Pipeline(spark, cluster.bootstrap, topic, str(lake), **options)

    return make


def lines_of(path: Path) -> "list[tuple[int, bytes]]":
    return [(number % PARTITIONS, line) for number, line in enumerate(path.read_bytes().splitlines())]


@pytest.fixture(scope="module")
def access(start: Callable[..., Pipeline], kills: Counter[str], access_log: Path) -> Pipeline:
    """Four days of a web site."""
    site = {"referrers": {"site": "semicomplete.com"}}
    pipeline = start("access-log", params=site)
    pipeline.send(lines_of(access_log))
    pipeline.run()
    pipeline.died = frozenset(kills)
    return pipeline


@pytest.mark.slow
def test_every_job_died_once_and_the_tables_have_the_facts_of_the_access_log(access: Pipeline) -> None:
    assert access.died == set(JOBS)
    views, found, referrers = (access.table(name) for name in ("page_views", "events", "referrers"))
    assert (found.count(), found.select("client").distinct().count()) == (10_000, 1753)
    assert not access.versions("quarantine") or access.table("quarantine").count() == 0
    assert views.selectExpr("sum(views)").collect()[0][0] == 4050
    assert views.select("page").distinct().count() == 805
    requests = {row.kind: row[1] for row in referrers.groupBy("kind").sum("requests").collect()}
    assert requests == {"missing": 4073, "internal": 5039, "external": 888}
    assert referrers.where("kind = 'external'").select("host").distinct().count() == 152
    sessions = access.table("sessions").selectExpr("count(*)", "count_if(requests = 1)", "sum(requests)")
    assert [tuple(row) for row in sessions.collect()] == [(3052, 1607, 10_000)]


@pytest.mark.slow
def test_estimated_visitors_are_within_the_error_of_sketches(access: Pipeline) -> None:
    estimated = access.table("visitors").selectExpr("day", "hll_sketch_estimate(visitors) AS visitors").collect()
    found = {row.day.day: row.visitors for row in estimated}
    assert found == pytest.approx({17: 341, 18: 627, 19: 561, 20: 505}, rel=HLL_ERROR)


@pytest.fixture(scope="module")
def compared(access: Pipeline) -> "dict[str, Differences]":
    """Differences between the tables of the access log and its report."""
    from headrace.pipeline.engine.tables.lake import Lake
    from headrace.pipeline.report import differences, report

    lake = Lake(access.spark, access.lake)
    return differences(lake, report(lake.read("events"), params=access.params), params=access.params)


@pytest.mark.slow
def test_the_streams_have_the_tables_of_the_report(compared: "dict[str, Differences]") -> None:
    assert {name: (only.in_report, only.in_table) for name, only in compared.items()} == dict.fromkeys(compared, (0, 0))
    assert len(compared) == 8


@pytest.mark.slow
@pytest.mark.usefixtures("compared")  # before only some of the jobs go on
def test_the_ranking_is_written_only_when_it_changes(access: Pipeline) -> None:
    views, rankings = access.versions("page_views"), access.versions("top_pages")
    access.send([])
    access.run("events", "page_views", "top_pages")
    assert access.versions("page_views") > views
    assert access.versions("top_pages") == rankings


@pytest.mark.slow
def test_sessions_of_a_log_with_torn_lines(start: Callable[..., Pipeline], access_log: Path) -> None:
    nasa = start("nasa", jobs=("events", "sessions"), max_rows=1_000)
    nasa.send(lines_of(access_log.with_name("nasa.log")))
    nasa.run()
    counts = [nasa.table(name).count() for name in ("events", "quarantine", "sessions")]
    assert counts == [1841, 89, 191]


@pytest.fixture(scope="module", params=[SHORT, pytest.param(LONG, marks=pytest.mark.slow)])
def generated(
    request: pytest.FixtureRequest,
    start: Callable[..., Pipeline],
    kills: Counter[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Pipeline, Path]:
    """A log with lines up to 90 minutes late, torn and duplicate lines, and crawlers; a batch has half of it."""
    lines: int = request.param
    parameters = Parameters(lines=lines, rate=0.5, late=0.02, torn=0.01, duplicates=0.01, partitions=PARTITIONS)
    directory = tmp_path_factory.mktemp("generated")
    wide = {"late_by": "2 hours"}
    names = ("events", "sessions", *(() if lines == SHORT else ("page_views", "traffic", "crawlers")))
    params = {"sessions": wide, "crawlers": wide}
    pipeline = start(f"generated-{lines}", jobs=names, params=params, max_rows=lines // 2 + 200)
    with truth_files(parameters, directory) as (truth, _):
        pipeline.send([(record.partition, record.line) for record in log(parameters, truth, lambda: False)])
    pipeline.run()
    # The others may read all events in one batch, and then die only if they were to die in their first one.
    assert kills["events"] == 1
    return pipeline, directory / "truth"


def truth_of(directory: Path, table: str, *columns: str) -> set[tuple[Any, ...]]:
    rows = [json.loads(row) for row in (directory / f"{table}.jsonl").read_text().splitlines()]
    return {tuple(row[name] for name in columns) for row in rows}


def found_in(rows: "DataFrame", *columns: str) -> set[tuple[Any, ...]]:
    """Return the rows, which must be different; times are ISO 8601."""
    from pyspark.sql import functions as sf

    kinds = dict(rows.dtypes)
    text = [
        sf.date_format(name, "yyyy-MM-dd'T'HH:mm:ss'Z'") if kinds[name] == "timestamp" else sf.col(name)
        for name in columns
    ]
    found = [tuple(row) for row in rows.select(*text).collect()]
    assert len(set(found)) == len(found)
    return set(found)


def test_sessions_are_those_of_the_truth(generated: tuple[Pipeline, Path]) -> None:
    pipeline, truth = generated
    columns = ("client", "start", "end", "requests", "pages")
    assert found_in(pipeline.table("sessions"), *columns) == truth_of(truth, "sessions", *columns)


@pytest.mark.slow
@pytest.mark.parametrize("generated", [LONG], indirect=True)
def test_views_are_those_of_the_truth(generated: tuple[Pipeline, Path]) -> None:
    pipeline, truth = generated
    columns = ("hour", "page", "views")
    assert found_in(pipeline.table("page_views"), *columns) == truth_of(truth, "page_views", *columns)


@pytest.mark.slow
@pytest.mark.parametrize("generated", [LONG], indirect=True)
def test_traffic_is_that_of_the_truth(generated: tuple[Pipeline, Path]) -> None:
    pipeline, truth = generated
    columns = ("minute", "requests", "bytes")
    assert found_in(pipeline.table("traffic"), *columns) == truth_of(truth, "traffic", *columns)


def test_torn_lines_are_quarantined_with_their_places_and_reasons(generated: tuple[Pipeline, Path]) -> None:
    pipeline, truth = generated
    columns = ("partition", "offset", "reason")
    assert found_in(pipeline.table("quarantine"), *columns) == truth_of(truth, "quarantined", *columns)


def test_lines_are_as_late_as_the_truth_says(generated: tuple[Pipeline, Path]) -> None:
    pipeline, truth = generated
    late = pipeline.table("events").where("late_by_s > 0").groupBy("source_partition", "late_by_s").count()
    found = {(row.source_partition, int(row.late_by_s)): row[2] for row in late.collect()}
    partitions = [json.loads(row) for row in (truth / "partitions.jsonl").read_text().splitlines()]
    assert found == {
        (row["partition"], int(seconds)): count for row in partitions for seconds, count in row["late_by_s"].items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("generated", [LONG], indirect=True)
def test_all_crawlers_but_slow_drips_are_found_and_nobody_else(generated: tuple[Pipeline, Path]) -> None:
    pipeline, truth = generated
    labelled = truth_of(truth, "crawlers", "client", "kind")
    found = {row.client for row in pipeline.table("crawlers").select("client").distinct().collect()}
    assert found == {client for client, kind in labelled if kind != "slow drip"}
