"""Quick jobs start before the others."""

from headrace.pipeline.engine.opening import Opening


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_other_jobs_start_when_every_quick_job_has_finished_a_batch() -> None:
    opening = Opening(["events", "traffic"], clock=Clock())
    assert [opening.admits(job) for job in ("events", "traffic", "sessions")] == [True, True, False]
    opening.finished("events")
    opening.finished("events")
    assert not opening.admits("sessions")
    opening.finished("traffic")
    assert opening.admits("sessions")


def test_the_other_jobs_start_even_if_a_quick_job_finishes_nothing() -> None:
    clock = Clock()
    opening = Opening(["events"], longest_s=20, clock=clock)
    clock.now = 19.9
    assert not opening.admits("sessions")
    clock.now = 20
    assert opening.admits("sessions")


def test_without_quick_jobs_nothing_waits() -> None:
    assert Opening([]).admits("sessions")
