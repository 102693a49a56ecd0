"""Decide when jobs are started and restarted, and when they fail: a state machine without clock, threads or Spark.

Its input is events with their times. Its output is instructions, which `supervisor.py` executes.

    blocked   --Ready-->                                    running    action: Start
    blocked   --Ended-->                                    finished   action: none, it has nothing to read
    running   --Ended without a reason-->                   finished
    running   --Ended with a reason-->                      waiting    action: none, until the delay is over
    running   --Ended, final or the limit is reached-->     failed
    waiting   --Tick after the delay-->                     running    action: Start
    any but failed and finished --StopAll-->                stopped    action: Stop if it runs
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeAlias


class State(StrEnum):
    """The state of a job."""

    BLOCKED = "blocked"
    """Its source table does not exist yet (with --once, is not complete yet), or other jobs must start first."""
    RUNNING = "running"
    WAITING = "waiting"
    """It has failed, and will be restarted after a delay."""
    FAILED = "failed"
    FINISHED = "finished"
    STOPPED = "stopped"


ENDED: Final = frozenset({State.FAILED, State.FINISHED, State.STOPPED})


@dataclass(frozen=True, slots=True)
class Ready:
    """The source of a job can be read."""

    job: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A query has ended. It is complete if `reason` is None; otherwise it failed. A `final` failure is not retried."""

    job: str
    reason: str | None = None
    final: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class StopAll:
    """The driver must stop."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the query of a job."""

    job: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the query of a job after its batch."""

    job: str


Event: TypeAlias = Ready | Ended | Tick | StopAll
Instruction: TypeAlias = Start | Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Delays before restarts, in seconds: `first_s`, multiplied by `factor` after every failure, up to `longest_s`.

    A job is not restarted after a `final` failure, or after `limit` failures within `window_s`. If `limit` is None, it
    is restarted after all other failures, even if brokers stay down.
    """

    first_s: float = 2.0
    factor: float = 3.0
    longest_s: float = 60.0
    limit: int | None = None
    window_s: float = 600.0


DEFAULT_POLICY: Final = Policy()
ONCE_POLICY: Final = Policy(limit=5)
"""For `--once`: retries for 80 s, longer than a broker takes to restart."""


@dataclass(slots=True)
class Standing:
    """The state of a job. Times are those of the events."""

    state: State = State.BLOCKED
    failures: list[float] = field(default_factory=list)
    """Times of the failures within the window."""
    reason: str | None = None
    retry_at: float | None = None


class Machine:
    """The jobs of a driver. They fail and restart independently of each other."""

    def __init__(self, jobs: Iterable[str], policy: Policy = DEFAULT_POLICY) -> None:
        """`jobs` are in data-flow order; they are stopped in reverse order."""
        self.jobs = {job: Standing() for job in jobs}
        self._policy = policy

    @property
    def ended(self) -> bool:
        return all(standing.state in ENDED for standing in self.jobs.values())

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Apply an event; return the instructions, in order. `now` is in seconds and never decreases."""
        match event:
            case Ready(job):
                return self._start(job) if self.jobs[job].state is State.BLOCKED else []
            case Ended(job):
                if self.jobs[job].state in (State.RUNNING, State.BLOCKED):
                    self._end(self.jobs[job], event, now)
                return []
            case Tick():
                for standing in self.jobs.values():
                    standing.failures = self._recent(standing.failures, now)
                due = [job for job, standing in self.jobs.items() if standing.retry_at is not None]
                return [item for job in due if (self.jobs[job].retry_at or 0) <= now for item in self._start(job)]
            case StopAll():
                return self._stop_all()

    def _start(self, job: str) -> list[Instruction]:
        standing = self.jobs[job]
        standing.state, standing.retry_at = State.RUNNING, None
        return [Start(job)]

    def _end(self, standing: Standing, ended: Ended, now: float) -> None:
        if ended.reason is None:
            standing.state = State.FINISHED
            return
        policy = self._policy
        standing.reason = ended.reason
        standing.failures = [*self._recent(standing.failures, now), now]
        if ended.final or len(standing.failures) == policy.limit:
            standing.state = State.FAILED
            return
        standing.state = State.WAITING
        delay = policy.first_s
        for _ in standing.failures[1:]:
            delay = min(delay * policy.factor, policy.longest_s)
        standing.retry_at = now + delay

    def _recent(self, failures: list[float], now: float) -> list[float]:
        return [at for at in failures if at > now - self._policy.window_s]

    def _stop_all(self) -> list[Instruction]:
        instructions: list[Instruction] = []
        for job, standing in reversed(self.jobs.items()):
            if standing.state is State.RUNNING:
                instructions.append(Stop(job))
            if standing.state not in ENDED:
                standing.state, standing.retry_at = State.STOPPED, None
        return instructions
