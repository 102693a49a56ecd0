from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.runtime.timers import Timers


def test_timers_fire_in_order_of_their_deadlines() -> None:
    timers: Timers[str] = Timers()
    timers.schedule("late", 2)
    timers.schedule("early", 1)
    assert list(timers.expired(0.5)) == []
    assert list(timers.expired(2)) == ["early", "late"]
    assert list(timers.expired(9)) == []


def test_cancelled_timers_do_not_accumulate() -> None:
    timers: Timers[int] = Timers()
    for key in range(1000):
        timers.schedule(key, key)
        timers.cancel(key)
    assert len(timers._heap) < 200


actions = st.lists(
    st.tuples(st.sampled_from(["schedule", "cancel", "advance"]), st.integers(0, 4), st.integers(0, 20)), max_size=60
)


@given(actions)
def test_a_timer_fires_once_at_its_last_deadline(steps: list[tuple[str, int, int]]) -> None:
    timers: Timers[int] = Timers()
    model: dict[int, int] = {}
    now = 0
    for action, key, amount in steps:
        if action == "schedule":
            timers.schedule(key, now + amount)
            model[key] = now + amount
        elif action == "cancel":
            timers.cancel(key)
            model.pop(key, None)
        else:
            now += amount
            due = {key for key, deadline in model.items() if deadline <= now}
            assert set(timers.expired(now)) == due
            for item in due:
                del model[item]
        if model:
            deadline = timers.next_deadline
            assert deadline is not None
            assert deadline <= min(model.values())


def test_a_timer_that_is_moved_or_cancelled_while_firing_does_not_fire() -> None:
    timers: Timers[str] = Timers()
    for key in ("first", "moved", "cancelled", "last"):
        timers.schedule(key, 1)
    fired = []
    for key in timers.expired(1):
        fired.append(key)
        if key == "first":
            timers.schedule("moved", 5)
            timers.cancel("cancelled")
    assert fired == ["first", "last"]
    assert list(timers.expired(5)) == ["moved"]


def test_a_timer_that_reschedules_itself_fires_once_per_call() -> None:
    timers: Timers[str] = Timers()
    for again in (0.5, 1):
        timers.schedule("a", 1)
        fired = []
        for key in timers.expired(1):
            fired.append(key)
            timers.schedule(key, again)
            assert len(fired) < 10, "the timer never stops"
        assert fired == ["a"]
        assert timers.next_deadline == again
        assert list(timers.expired(1)) == ["a"]
