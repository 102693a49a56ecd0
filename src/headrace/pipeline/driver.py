"""The process that runs the queries: `python -m headrace.pipeline --bootstrap HOST:PORT --data DIR`.

A process of its own keeps Spark's output in a log, and can be killed and restarted independently. It writes JSON lines
to standard output: `ready`, `progress`, and finally `report` or `failed`. The line `finish` on standard input makes it
process the rest of the topic, report and exit. It exits without a report on SIGTERM and at the end of standard input,
that is, when its parent dies.
"""

import argparse
import contextlib
import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from headrace.pipeline import requirements
from headrace.pipeline.errors import PipelineError

FINISH: Final = "finish"
_POLL_S: Final = 0.2

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the jobs of the access log. Returns the exit status, 1 if a query failed."""
    parser = argparse.ArgumentParser(prog="python -m headrace.pipeline", description="Run the access log's queries.")
    parser.add_argument("--bootstrap", required=True, metavar="HOST:PORT", help="a broker of the cluster")
    parser.add_argument("--data", required=True, type=Path, metavar="DIR", help="directory of tables and checkpoints")
    parser.add_argument("--prefix", default="", help="prefix of the names of all topics and groups")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    out = _claim_standard_output()
    try:
        requirements.check()
        _run(options.bootstrap, options.data, options.prefix, out)
    except PipelineError as error:
        _emit(out, "failed", reason=str(error))
        return 1
    except Exception as error:
        log.exception("The queries failed")
        _emit(out, "failed", reason=_first_line(error))
        return 1
    return 0


def _run(bootstrap: str, data: Path, prefix: str, out: TextIO) -> None:
    from headrace.pipeline.jobs import access_log
    from headrace.pipeline.jobs.place import Place
    from headrace.pipeline.jobs.report import report
    from headrace.pipeline.jobs.runner import Runner
    from headrace.pipeline.jobs.settle import settle
    from headrace.pipeline.jobs.sink import Cluster
    from headrace.pipeline.session import build_session
    from headrace.pipeline.topics import ACCESS_LOG

    commands = _read_commands()
    cluster, place = Cluster(bootstrap=bootstrap, prefix=prefix), Place(directory=data)
    with contextlib.ExitStack() as stack:
        spark = build_session("headrace access log", data / "scratch")
        stack.callback(spark.stop)
        runner = Runner(spark, cluster, ACCESS_LOG, place)
        stack.callback(runner.stop)
        runner.start(access_log.JOBS)
        _emit(out, "ready", jobs=[job.name for job in access_log.JOBS])
        draining: threading.Thread | None = None
        while True:
            command = _next(commands)
            drained = draining is not None and not draining.is_alive()
            for done in runner.poll():
                _emit(out, "progress", job=done.job, batch=done.batch, offsets=done.offsets, published=done.published)
            if command == FINISH:
                draining = runner.drain()
            elif command is not None:
                return
            if drained:
                runner.stop()
                settled = settle(spark, cluster, place) if runner.late_rows_possible else 0
                _emit(out, "report", settled=settled, **report(spark, place))
                return


def _next(commands: queue.SimpleQueue[str]) -> str | None:
    try:
        return commands.get(timeout=_POLL_S)
    except queue.Empty:
        return None


def _read_commands() -> queue.SimpleQueue[str]:
    """Return a queue with the lines of standard input, and an empty line to stop."""
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            commands.put(line.strip())
        commands.put("")

    threading.Thread(target=read, name="commands", daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: commands.put(""))
    return commands


def _claim_standard_output() -> TextIO:
    """Return the original standard output; what Spark and its Java process print goes to standard error."""
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
