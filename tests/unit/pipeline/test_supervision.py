"""The machine that starts, repeats and gives up jobs."""

from headrace.pipeline.engine.supervision import ONCE_POLICY, Ended, Machine, Ready, Start, State, Stop, StopAll, Tick


def running(*jobs: str) -> Machine:
    machine = Machine(jobs, ONCE_POLICY)
    for job in jobs:
        machine.handle(Ready(job), 0)
    return machine


def fail(machine: Machine, job: str, now: float) -> float:
    """Let a job fail; return the delay until it starts again."""
    machine.handle(Ended(job, "broken"), now)
    retry_at = machine.jobs[job].retry_at
    assert retry_at is not None
    return retry_at - now


def test_a_job_starts_when_its_source_is_ready() -> None:
    machine = Machine(["events"], ONCE_POLICY)
    assert machine.handle(Tick(), 100) == []
    assert machine.handle(Ready("events"), 100) == [Start("events")]
    assert machine.handle(Ready("events"), 101) == []


def test_a_failed_job_starts_again_after_its_delay_and_not_before() -> None:
    machine = running("events")
    machine.handle(Ended("events", "broken"), 10)
    assert machine.handle(Tick(), 11.9) == []
    assert machine.handle(Tick(), 12) == [Start("events")]


def test_no_delay_is_longer_than_a_minute_and_no_failure_the_last() -> None:
    machine, now, delays = Machine(["events"]), 0.0, []
    machine.handle(Ready("events"), now)
    while now < 3600:
        delays.append(fail(machine, "events", now))
        now += delays[-1]
        assert machine.handle(Tick(), now) == [Start("events")]
    assert (delays[:4], set(delays[4:])) == ([2, 6, 18, 54], {60})


def failed_four_times() -> Machine:
    """Return a machine whose job runs again after failures in seconds 0 to 300."""
    machine = running("events")
    for now in (0, 100, 200, 300):
        fail(machine, "events", now)
        machine.handle(Tick(), now + 60)
    return machine


def test_the_fifth_failure_within_ten_minutes_is_the_last() -> None:
    machine = failed_four_times()
    machine.handle(Ended("events", "still broken"), 599)
    assert (machine.jobs["events"].state, machine.jobs["events"].reason) == (State.FAILED, "still broken")
    assert machine.handle(Tick(), 10_000) == []


def test_failures_older_than_ten_minutes_are_forgotten() -> None:
    assert fail(failed_four_times(), "events", 900.5) == 2


def test_a_job_that_runs_for_ten_minutes_has_no_failures() -> None:
    machine = running("events")
    fail(machine, "events", 0)
    machine.handle(Tick(), 599)
    assert machine.jobs["events"].failures == [0]
    machine.handle(Tick(), 600)
    assert machine.jobs["events"].failures == []


def test_jobs_end_when_they_are_complete_or_their_failure_is_final() -> None:
    machine = running("events", "views")
    machine.handle(Ended("events", "fenced", final=True), 1)
    assert [standing.state for standing in machine.jobs.values()] == [State.FAILED, State.RUNNING]
    assert not machine.ended
    machine.handle(Ended("views"), 1)
    assert machine.jobs["views"].state is State.FINISHED
    assert machine.ended


def test_a_job_whose_source_never_comes_is_finished() -> None:
    machine = Machine(["views"], ONCE_POLICY)
    machine.handle(Ended("views"), 1)
    assert machine.jobs["views"].state is State.FINISHED


def test_jobs_stop_before_those_whose_tables_they_read() -> None:
    assert running("events", "views").handle(StopAll(), 1) == [Stop("views"), Stop("events")]


def test_a_waiting_job_does_not_start_after_the_stop() -> None:
    machine = running("events")
    fail(machine, "events", 1)
    assert machine.handle(StopAll(), 2) == []
    assert machine.handle(Tick(), 100) == []
    assert machine.jobs["events"].state is State.STOPPED


def test_a_stop_keeps_failed_and_finished_jobs_as_they_are() -> None:
    machine = running("events", "views")
    machine.handle(Ended("events", "broken", final=True), 1)
    machine.handle(Ended("views"), 1)
    machine.handle(StopAll(), 2)
    assert [standing.state for standing in machine.jobs.values()] == [State.FAILED, State.FINISHED]
