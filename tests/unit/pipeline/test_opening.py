"""After a start, jobs begin in stages."""

import threading

from headrace.pipeline.engine.scheduling.turns import Opening


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def admitted(opening: Opening) -> list[str]:
    return [job for job in ("traffic", "status", "events", "sessions") if opening.admits(job)]


def test_a_stage_starts_when_every_job_of_the_stage_before_has_finished_a_batch() -> None:
    opening = Opening([["traffic", "status"], ["events"]], clock=Clock())
    assert admitted(opening) == ["traffic", "status"]
    opening.finished("traffic")
    opening.finished("traffic")
    assert list(opening.unfinished) == ["status"]
    assert admitted(opening) == ["traffic", "status"]
    opening.finished("status")
    assert list(opening.unfinished) == ["events"]
    assert admitted(opening) == ["traffic", "status", "events"]
    opening.finished("traffic")
    assert admitted(opening) == ["traffic", "status", "events"]
    opening.finished("events")
    assert not opening.unfinished
    assert admitted(opening) == ["traffic", "status", "events", "sessions"]


def test_a_job_that_has_had_its_batch_waits_for_the_others_of_the_stage() -> None:
    opening = Opening([["events", "status"]], clock=Clock())
    assert not opening.holds("events")
    opening.finished("events")
    assert opening.holds("events")
    assert not opening.holds("status")
    assert not opening.holds("sessions")
    opening.finished("status")
    assert not opening.holds("events")


def test_the_wait_for_the_others_ends_with_their_last_batch() -> None:
    opening = Opening([["events", "status"]])
    opening.finished("events")
    waiting = threading.Thread(target=opening.wait_for_others, args=("events",), daemon=True)
    waiting.start()
    opening.wait_for_others("status")
    assert waiting.is_alive()
    opening.finished("status")
    waiting.join(10)
    assert not waiting.is_alive()


def test_no_job_waits_longer_than_the_stage_may_take() -> None:
    clock = Clock()
    opening = Opening([["events", "status"]], longest_s=20.0, clock=clock)
    opening.finished("events")
    clock.now = 20.0
    assert not opening.holds("events")


def test_a_stage_whose_jobs_finish_nothing_ends_after_some_time() -> None:
    clock = Clock()
    opening = Opening([["traffic"], ["events"]], longest_s=20.0, clock=clock)
    clock.now = 19.9
    assert admitted(opening) == ["traffic"]
    clock.now = 20.0
    assert admitted(opening) == ["traffic", "events"]
    clock.now = 39.9
    assert not opening.admits("sessions")
    clock.now = 40.0
    assert opening.admits("sessions")


def test_without_stages_all_jobs_start_at_once() -> None:
    opening = Opening([[], []], clock=Clock())
    assert opening.admits("sessions")
    assert not opening.unfinished
    opening.finished("sessions")
