"""The process that runs the demo's jobs: `python -m headrace.pipeline.demo.driver`.

A separate process keeps Spark's output in a log, and can be killed and restarted. It writes JSON lines to standard
output: `ready`, `drained`, and finally `report` or `failed`. After the line `finish` on standard input, it processes
the rest of the topic, reports and exits. It exits without a report on SIGTERM, or if standard input ends because
its parent has died.
"""

import argparse
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TextIO

from headrace.pipeline.demo.deployment import DemoJobs, demo_jobs
from headrace.pipeline.errors import PipelineError

if TYPE_CHECKING:
    from headrace.pipeline.engine.supervisor import Supervisor
    from headrace.pipeline.engine.tables.lake import Lake
    from headrace.pipeline.spec.jobs import Job

FINISH: Final = "finish"
_POLL_S: Final = 0.1
_FEW_LINES: Final = 50_000

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs. Return the exit status: 1 after a failure."""
    parser = argparse.ArgumentParser(prog="python -m headrace.pipeline.demo.driver", allow_abbrev=False)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--prefix", default="")
    parser.add_argument("--lines", type=int, help="expected number of lines")
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    out = _claim_standard_output()
    try:
        found = demo_jobs(bootstrap=options.bootstrap, lake=options.lake, prefix=options.prefix, overrides=options.set)
        _run(found, out, few_rows=options.lines is not None and options.lines <= _FEW_LINES)
    except PipelineError as error:
        _emit(out, "failed", reason=str(error))
        return 1
    except Exception as error:
        log.exception("The jobs failed")
        _emit(out, "failed", reason=_first_line(error))
        return 1
    return 0


def _run(demo: DemoJobs, out: TextIO, *, few_rows: bool) -> None:
    from headrace.pipeline.demo.report import report
    from headrace.pipeline.engine import run, session
    from headrace.pipeline.engine.tables.lake import Lake

    deployment, jobs = demo.deployment, run.selected(demo.deployment, demo.jobs, ())
    commands = _read_commands()
    spark = session.build(deployment, name="headrace demo", few_rows=few_rows)
    try:
        lake = Lake(spark, deployment.lake)
        params = {name: deployment.params(job) for name, job in jobs.items()}
        supervisor = run.supervisor(spark, deployment, jobs, jobs, params, once=False)
        stopping = threading.Event()
        with ThreadPoolExecutor(1, thread_name_prefix="supervisor") as executor:
            supervised = executor.submit(supervisor.run, stopping)
            _emit(out, "ready")
            try:
                complete = _wait(
                    commands,
                    supervisor,
                    supervised,
                    threading.Thread(target=_drain, args=(supervisor, jobs, lake), daemon=True),
                )
            finally:
                stopping.set()
        if complete:
            _emit(out, "drained")
            _emit(out, "report", **report(lake, demo, few_rows=few_rows))
    finally:
        spark.stop()


def _wait(
    commands: queue.SimpleQueue[str], supervisor: "Supervisor", supervised: "Future[bool]", drain: threading.Thread
) -> bool:
    """Wait for commands. On `finish`, start `drain`, and return True when it ends. On any other, return False.

    Raises PipelineError if a job has failed for good.
    """
    from headrace.pipeline.engine.supervision import State

    while True:
        command = _next(commands)
        if command == FINISH:
            drain.start()
        elif command is not None:
            return False
        for job, standing in supervisor.jobs.items():
            if standing.state is State.FAILED:
                raise PipelineError(f"job {job} failed: {standing.reason}")
        if supervised.done():
            supervised.result()
        if drain.ident is not None and not drain.is_alive():
            return True


def _drain(supervisor: "Supervisor", jobs: "Mapping[str, Job]", lake: "Lake") -> None:
    """Wait until the jobs have processed everything that is available now. `jobs` are in data-flow order."""
    from pyspark.errors import StreamingQueryException

    from headrace.pipeline.engine.supervision import State
    from headrace.pipeline.spec.jobs import Table

    for name, job in jobs.items():
        while True:
            query, state = supervisor.running(name), supervisor.jobs[name].state
            if state is State.RUNNING and query is not None:
                try:
                    query.processAllAvailable()
                    break
                except StreamingQueryException:
                    pass  # the supervisor restarts the job, unless it has failed for good
            elif state is State.BLOCKED and isinstance(job.source, Table) and not lake.exists(job.source.name):
                break  # its source has no rows
            time.sleep(_POLL_S)


def _next(commands: queue.SimpleQueue[str]) -> str | None:
    try:
        return commands.get(timeout=_POLL_S)
    except queue.Empty:
        return None


def _read_commands() -> queue.SimpleQueue[str]:
    """Return a queue of the lines of standard input; an empty line means to stop."""
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(line.strip())
        commands.put("")

    threading.Thread(target=read, name="commands", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: commands.put(""))
    return commands


def _claim_standard_output() -> TextIO:
    """Return the original standard output. Redirect the output of Spark and its Java process to standard error."""
    own = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return own


def _emit(out: TextIO, event: str, **values: Any) -> None:
    try:
        out.write(json.dumps({"event": event, **values}) + "\n")
        out.flush()
    except BrokenPipeError:
        log.warning("Standard output is closed; the event '%s' is lost", event)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "") or type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
