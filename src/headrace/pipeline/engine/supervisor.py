"""Run the queries of several jobs until they finish, fail or must stop."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from confluent_kafka import KafkaException
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from headrace.pipeline.engine.java import has_ended
from headrace.pipeline.engine.monitoring.failures import first_line
from headrace.pipeline.engine.supervision import (
    DEFAULT_POLICY,
    Ended,
    Event,
    Instruction,
    Machine,
    Policy,
    Ready,
    Standing,
    Start,
    State,
    StopAll,
    Tick,
)
from headrace.pipeline.errors import PipelineError, TemporaryError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_POLL_S: Final = 0.25
_WARN_EVERY_S: Final = 60.0
_EXPECTED: Final = (PipelineError, TemporaryError, KafkaException, OSError)
"""Failures whose messages are enough. Others, such as errors in a job's function, are logged with a stack trace."""

log = logging.getLogger(__name__)


class Query(Protocol):
    """A query that can be started once."""

    def start(self, *, once: bool) -> "StreamingQuery": ...

    def failed(self, running: "StreamingQuery") -> Exception | None: ...

    def stop(self, running: "StreamingQuery | None") -> None: ...


class Watcher(Protocol):
    """Called a few times a second for each job."""

    def watch(self, job: str, standing: Standing, query: Any, running: "StreamingQuery | None") -> None: ...

    def close(self) -> None: ...


class Supervisor:
    """Several jobs in one driver. A failed job is restarted after a delay; the others continue."""

    def __init__(
        self,
        make: Mapping[str, Callable[[], Query]],
        readiness: Callable[[str, Mapping[str, Standing]], Literal["ready", "later", "never"]],
        watcher: Watcher,
        *,
        once: bool,
        policy: Policy = DEFAULT_POLICY,
    ) -> None:
        """`make` maps every job, in data-flow order, to a function that returns a new query of the job.

        `readiness` returns for a blocked job 'ready' (start it), 'later' (check again) or 'never' (end it).
        """
        self._make = make
        self._readiness = readiness
        self._watcher = watcher
        self._once = once
        self._machine = Machine(make, policy)
        self._queries: dict[str, Query] = {}
        self._running: dict[str, StreamingQuery] = {}
        self._warned: dict[str, tuple[str, float]] = {}
        """By job: why its progress could not be written, and the time of the last log message about it."""
        self._surprises: dict[str, Exception] = {}
        """By job: the failure to report with a stack trace."""

    @property
    def jobs(self) -> Mapping[str, Standing]:
        return self._machine.jobs

    def running(self, job: str) -> "StreamingQuery | None":
        """Return the latest query of a job, which may have ended."""
        return self._running.get(job)

    def run(self, stopping: threading.Event) -> bool:
        """Run until all jobs have ended, or until `stopping` is set. Return False if a job failed.

        Raises Py4JNetworkError if Spark's Java process has ended.
        """
        try:
            while not self._machine.ended:
                if stopping.is_set():
                    self._handle(StopAll())
                    break
                for event in self._events():
                    self._handle(event)
                self._watch()
                if not self._machine.ended:
                    stopping.wait(_POLL_S)
            for job, query in self._queries.items():
                query.stop(self._running.get(job))
        except Exception as error:
            if has_ended(error):
                raise Py4JNetworkError("Spark's Java process has ended") from error
            raise
        self._watch()
        self._watcher.close()
        return all(standing.state is not State.FAILED for standing in self.jobs.values())

    def _events(self) -> Sequence[Event]:
        events: list[Event] = []
        for job in [job for job, standing in self.jobs.items() if standing.state is State.BLOCKED]:
            readiness = self._ready(job)
            if readiness != "later":
                events.append(Ready(job) if readiness == "ready" else Ended(job))
        for job, running in self._running.items():
            if self.jobs[job].state is State.RUNNING and not running.isActive:
                events.append(self._ended(job, self._queries[job].failed(running)))
        return [*events, Tick()]

    def _ready(self, job: str) -> Literal["ready", "later", "never"]:
        try:
            return self._readiness(job, self.jobs)
        except (OSError, Py4JError, PySparkException) as error:
            if has_ended(error):
                raise
            log.warning("Job %s is waiting because its source cannot be checked: %s", job, first_line(error))
            return "later"

    def _handle(self, event: Event) -> None:
        now = time.monotonic()
        for instruction in self._machine.handle(event, now):
            self._execute(instruction)
        if isinstance(event, Ended) and event.reason is not None:
            standing = self.jobs[event.job]
            then = "it stays stopped until you correct the cause and run it again"
            if standing.retry_at is not None:
                then = f"restarting in {standing.retry_at - now:.0f} s"
            if event.job in self._queries:
                # Abort an open transaction: read_committed consumers would wait for its end.
                self._queries[event.job].stop(self._running.get(event.job))
            log.error(
                "Job %s failed (failure %d in ten minutes): %s; %s",
                event.job,
                len(standing.failures),
                event.reason,
                then,
                exc_info=self._surprises.pop(event.job, None),
            )

    def _execute(self, instruction: Instruction) -> None:
        job = instruction.job
        if not isinstance(instruction, Start):
            self._queries[job].stop(self._running.get(job))
            return
        self._running.pop(job, None)
        try:
            self._queries[job] = query = self._make[job]()
            self._running[job] = query.start(once=self._once)
        except Exception as error:
            if has_ended(error):
                raise
            log.debug("Starting job %s failed", job, exc_info=True)
            self._handle(self._ended(job, error))

    def _watch(self) -> None:
        for job, standing in self.jobs.items():
            try:
                self._watcher.watch(job, standing, self._queries.get(job), self._running.get(job))
            except (OSError, KafkaException, Py4JError, PySparkException) as error:
                self._warn(job, first_line(error))

    def _warn(self, job: str, reason: str) -> None:
        """Log that the progress could not be written. Attempts are frequent: log the same reason once a minute."""
        said, at = self._warned.get(job, ("", 0.0))
        if reason != said or time.monotonic() - at > _WARN_EVERY_S:
            log.warning("The progress of job %s could not be written: %s", job, reason)
            self._warned[job] = reason, time.monotonic()

    def _ended(self, job: str, failure: Exception | None) -> Ended:
        if failure is not None and not isinstance(failure, _EXPECTED):
            self._surprises[job] = failure
        # A retry would raise the same PipelineError: a person must act.
        reason = None if failure is None else first_line(failure)
        return Ended(job, reason, final=isinstance(failure, PipelineError))
