"""Run jobs of a deployment in this process."""

import logging
import signal
import threading
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from headrace.pipeline.engine import session
from headrace.pipeline.engine.exactly_once import topic_ids
from headrace.pipeline.engine.exactly_once.claims import Claims
from headrace.pipeline.engine.exactly_once.losses import AcceptedLosses
from headrace.pipeline.engine.files import Files
from headrace.pipeline.engine.java import has_ended, has_stopped, silence
from headrace.pipeline.engine.monitoring import failures
from headrace.pipeline.engine.monitoring.reporter import TOPIC, Reporter
from headrace.pipeline.engine.monitoring.runs import Runs
from headrace.pipeline.engine.query import Query, Surroundings
from headrace.pipeline.engine.scheduling.opening import FirstBatches, writer_of
from headrace.pipeline.engine.scheduling.turns import QUICK_S, Opening, Turns
from headrace.pipeline.engine.supervision import DEFAULT_POLICY, ENDED, ONCE_POLICY, Policy, Standing
from headrace.pipeline.engine.supervisor import Supervisor
from headrace.pipeline.engine.tables.lake import Lake
from headrace.pipeline.engine.topics import Topics
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.deployment import Deployment
from headrace.pipeline.spec.jobs import Changelog, Job, Publish, Table, TableOutput
from headrace.pipeline.spec.params import seconds_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


def selected(deployment: Deployment, jobs: Mapping[str, Job], names: Iterable[str]) -> dict[str, Job]:
    """Return the named jobs, or all that can run, in data-flow order: a job follows the one that writes its source.

    Raises PipelineError for an unknown job, for a named job without a topic, for a cycle of jobs, and if none is left.
    """
    names = list(dict.fromkeys(names))
    if unknown := [name for name in names if name not in jobs]:
        raise PipelineError(f"there is no job '{unknown[0]}'. Known jobs: {', '.join(sorted(jobs)) or 'none'}.")
    chosen = {name: jobs[name] for name in names or jobs}
    for name in [name for name, job in chosen.items() if not (_reads_table(job) or deployment.settings(name).topic)]:
        what = f'job {name} reads a topic, but the deployment names none: write topic = "NAME" under [jobs.{name}]'
        if names:
            raise PipelineError(what)
        log.warning("Not started: %s", what)
        del chosen[name]
    if not chosen:
        raise PipelineError("there is no job to run: name topics in the deployment, or give your jobs with --from FILE")
    return _in_order(chosen)


def run(
    deployment: Deployment,
    jobs: Mapping[str, Job],
    names: Iterable[str] = (),
    *,
    once: bool = False,
    master: str | None = None,
    accepted: Collection[str] = (),
    accepted_losses: Collection[str] = (),
    started: Callable[[Iterable[str]], None] = lambda _: None,
) -> bool:
    """Run jobs until Ctrl-C or SIGTERM, or with `once` until everything available now is processed.

    A signal ends the queries after their batches. `accepted` are source topics to read from the beginning if they were
    re-created. `accepted_losses` are those to continue with even if unread records were deleted. `started` is called
    with the jobs when Spark is ready. Returns False if a job failed. Raises PipelineError as `selected` does, for an
    invalid deployment, for an accepted topic that no job reads, and if Spark does not start or ends early.
    """
    chosen = selected(deployment, jobs, names)
    read = {topic for name in chosen for topic in (deployment.settings(name).topic or "").split(",")}
    options = {"--accept-new-topic": accepted, "--accept-lost": accepted_losses}
    for option, topic in ((option, topic) for option, topics in options.items() for topic in topics):
        if topic not in read:
            others = ", ".join(sorted(read - {""})) or "no topics"
            raise PipelineError(f"{option} {topic}: no job of this run reads this topic; the jobs read {others}")
    params = {name: deployment.params(job) for name, job in chosen.items()}
    if read - {""}:
        deployment.cluster.spark_options()  # an unusable certificate or secret is reported before Spark starts
    spark = session.build(deployment, master=master)
    try:
        with _until_signal() as stopping, failures.explained():
            started(chosen)
            supervised = supervisor(
                spark,
                deployment,
                jobs,
                chosen,
                params,
                once=once,
                accepted=accepted,
                accepted_losses=accepted_losses,
            )
            complete = supervised.run(stopping)
            if has_stopped(spark):
                raise PipelineError("Spark stopped before the jobs did; the next start repeats interrupted batches")
            return complete
    finally:
        session.stop(spark)


def supervisor(
    spark: "SparkSession",
    deployment: Deployment,
    jobs: Mapping[str, Job],
    chosen: Mapping[str, Job],
    params: Mapping[str, object],
    *,
    once: bool,
    accepted: Collection[str] = (),
    accepted_losses: Collection[str] = (),
    policy: Policy | None = None,
) -> Supervisor:
    """Return the supervisor of the `chosen` jobs, which are in data-flow order. `jobs` are all known jobs.

    Raises PipelineError if the lake or the checkpoints are not writable, and KafkaException.
    """
    # The supervisor reports failures of queries, with stack traces only if they help.
    silence(spark, "org.apache.spark.sql.execution.streaming.MicroBatchExecution")
    silence(spark, "org.apache.spark.sql.catalyst.util.SparkStringUtils")  # it warns about truncated plans
    files, lake = Files(spark), Lake(spark, deployment.lake)
    _check_writable(files, (deployment.lake, deployment.checkpoints))
    # With --once, all jobs finish sooner if none waits for others.
    quick = () if once else _quick(chosen, deployment)
    start = FirstBatches(chosen, lake, deployment.checkpoints)
    around = Surroundings(
        spark=spark,
        lake=lake,
        cluster=deployment.cluster,
        checkpoints=deployment.checkpoints,
        prefix=deployment.prefix,
        accepted=topic_ids.Accepted(accepted),
        losses=AcceptedLosses(accepted_losses),
        claims=Claims(files, deployment.checkpoints),
        turns=Turns(spark.sparkContext.defaultParallelism, reserved=any(_reads_table(jobs[name]) for name in quick)),
        opening=Opening(start.stages(quick)),
    )
    progress_topic = deployment.prefix + TOPIC
    Topics(deployment.cluster.confluent("admin")).create(progress_topic, {"cleanup.policy": "compact"}, partitions=1)

    def ready(name: str, standings: Mapping[str, Standing]) -> Literal["ready", "later", "never"]:
        for opened in around.opening.unfinished:
            if start.has_nothing(opened, supervised.running(opened), around.opening.unfinished):
                around.opening.finished(opened)
        if not around.opening.admits(name):
            return "later"
        source = chosen[name].source
        if not isinstance(source, Table):
            return "ready"
        writer = writer_of(source.name, chosen)
        complete = writer is None or standings[writer].state in ENDED
        if once and not complete:
            return "later"
        return "ready" if lake.exists(source.name) else "never" if once else "later"

    make = {
        name: partial(
            Query,
            job,
            params[name],
            deployment.settings(name),
            around,
            origin=_origin(job, jobs, deployment),
            source_output=_source_output(job, jobs),
        )
        for name, job in chosen.items()
    }
    versions = {name: job.version for name, job in chosen.items()}
    reporter = Reporter(
        files, deployment.checkpoints, deployment.cluster, versions, runs=Runs(lake), topic=progress_topic
    )
    supervised = Supervisor(
        make, ready, reporter, once=once, policy=policy or (ONCE_POLICY if once else DEFAULT_POLICY)
    )
    return supervised


def _check_writable(files: Files, places: Iterable[str]) -> None:
    """Raise PipelineError for the first of the directories that cannot be written."""
    for place in places:
        file = f"{place}/_writable-{uuid.uuid4().hex}"
        try:
            files.write(file, "")
            files.delete(file)
        except OSError as error:
            if has_ended(error):
                raise
            raise PipelineError(f"cannot write to {place}: {(error.strerror or str(error)).lower()}") from None
        except (Py4JJavaError, PySparkException) as error:  # a file system of Hadoop
            raise PipelineError(f"cannot write to {place}: {failures.first_line(error)}") from None


@contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C, SIGTERM and, unless it is ignored, SIGHUP set. Restore the handlers at the end."""
    stopping = threading.Event()
    numbers = [number for number in session.STOP_SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = [signal.signal(number, lambda *_: stopping.set()) for number in numbers]
    try:
        yield stopping
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _reads_table(job: Job) -> bool:
    return isinstance(job.source, Table)


def _quick(jobs: Mapping[str, Job], deployment: Deployment) -> Sequence[str]:
    """Return the jobs with an interval of at most two seconds."""
    return [
        name for name, job in jobs.items() if seconds_of(deployment.settings(name).trigger or job.trigger) <= QUICK_S
    ]


def _in_order(jobs: Mapping[str, Job]) -> dict[str, Job]:
    ordered: dict[str, Job] = {}

    def add(name: str, after: tuple[str, ...]) -> None:
        job = jobs[name]
        if name in after:
            raise PipelineError(f"jobs read each other's tables in a cycle: {' -> '.join((*after, name))}")
        if isinstance(job.source, Table) and (writer := writer_of(job.source.name, jobs)) is not None:
            add(writer, (*after, name))
        ordered.setdefault(name, job)

    for name in jobs:
        add(name, ())
    return ordered


def _origin(job: Job, jobs: Mapping[str, Job], deployment: Deployment) -> str | None:
    """Return the topic that the job's rows come from; None unless there is exactly one."""
    seen: set[str] = set()
    while isinstance(job.source, Table):
        writer = writer_of(job.source.name, jobs)
        if writer is None or writer in seen:
            return None
        seen.add(writer)
        job = jobs[writer]
    topic = deployment.settings(job.name).topic
    return None if topic is None or "," in topic else topic


def _source_output(job: Job, jobs: Mapping[str, Job]) -> TableOutput | None:
    """Return the output that writes the job's source; None for a topic, or for a table that no job writes."""
    if not isinstance(job.source, Table) or (writer := writer_of(job.source.name, jobs)) is None:
        return None
    outputs = [output for output in jobs[writer].outputs if not isinstance(output, Changelog | Publish)]
    return next((output for output in outputs if output.table == job.source.name), None)
