"""Connections take turns, between which the loop polls its sockets."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.server.loop.turns import BUDGET_NS, FRESH, HEAVY, HEAVY_NS, LIGHT, LONG_NS, Pace, TimedSteps, Turns


class Loop:
    """An event loop with a clock that only work advances."""

    def __init__(self) -> None:
        self.ns = 0
        self.calls: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.turns = Turns(self.calls.append, clock=lambda: self.ns)

    def round(self) -> list[str]:
        """Run one round, and return the names of its jobs."""
        before = len(self.done)
        due, self.calls[:] = self.calls[:], []
        for call in due:
            call()
        return self.done[before:]


class Job:
    def __init__(self, loop: Loop, name: str, ns: int, *, is_waiting: bool = False) -> None:
        self.loop = loop
        self.name = name
        self.ns = ns
        self.is_waiting = is_waiting

    def take_turn(self) -> None:
        self.loop.ns += self.ns
        self.loop.done.append(self.name)


def test_costly_turns_are_few_in_a_round_and_keep_their_order() -> None:
    loop = Loop()
    for number in range(5):
        loop.turns.add(Job(loop, f"costly {number}", BUDGET_NS * 3 // 4), HEAVY)

    assert loop.round() == ["costly 0", "costly 1"]
    assert loop.round() == ["costly 2", "costly 3"]
    assert loop.round() == ["costly 4"]
    assert not loop.turns.is_contended
    assert loop.calls == []


def test_replies_are_held_back_until_they_are_released_together() -> None:
    loop = Loop()
    loop.turns.hold_replies()
    for number in range(2):
        loop.turns.add(Job(loop, f"reply {number}", 1), LIGHT, is_reply=True)
    loop.turns.add(Job(loop, "quick", 1), LIGHT)
    assert loop.done == []

    loop.turns.release_replies()
    assert loop.done == ["reply 0", "reply 1"]
    assert loop.round() == ["quick"]
    loop.turns.add(Job(loop, "later reply", 1), LIGHT, is_reply=True)
    assert loop.round() == ["later reply"]


def test_quick_turns_go_first_and_do_not_starve_others() -> None:
    loop = Loop()
    for number in range(3):
        loop.turns.add(Job(loop, "costly", BUDGET_NS), HEAVY)
        loop.turns.add(Job(loop, f"quick {number}", BUDGET_NS), LIGHT)

    assert [loop.round() for _ in range(3)] == [["quick 0", "costly"], ["quick 1", "costly"], ["quick 2", "costly"]]


def test_many_new_connections_do_not_delay_others() -> None:
    loop = Loop()
    for number in range(3):
        loop.turns.add(Job(loop, f"new {number}", BUDGET_NS), FRESH)
    loop.turns.add(Job(loop, "quick", 0), LIGHT)
    loop.turns.add(Job(loop, "costly", BUDGET_NS), HEAVY)

    assert [loop.round() for _ in range(3)] == [["quick", "new 0", "costly"], ["new 1"], ["new 2"]]


def test_only_connections_of_the_kind_that_already_waits_must_queue() -> None:
    for kind, must_wait in ((FRESH, [False, True, False]), (HEAVY, [False, False, True])):
        loop = Loop()
        loop.turns.add(Job(loop, "waits", 0), kind)

        assert [loop.turns.must_wait(other) for other in (LIGHT, FRESH, HEAVY)] == must_wait
        assert loop.turns.is_contended


def test_one_waiting_request_begins_per_round() -> None:
    loop = Loop()
    for _ in range(3):
        loop.turns.add(Job(loop, "later", 0, is_waiting=True), HEAVY)

    assert loop.round() == ["later"]


def test_after_a_poll_with_too_much_work_all_connections_wait_for_a_round() -> None:
    loop = Loop()
    contended = []
    for _ in range(2):
        loop.turns.spent(BUDGET_NS // 2)
        contended.append(loop.turns.is_contended)
    assert contended == [False, True]
    assert loop.turns.must_wait(LIGHT)

    loop.round()
    assert not loop.turns.must_wait(LIGHT)


def test_a_failing_turn_does_not_affect_others() -> None:
    loop = Loop()

    class Broken(Job):
        def take_turn(self) -> None:
            raise ZeroDivisionError

    loop.turns.add(Broken(loop, "", 0), LIGHT)
    loop.turns.add(Job(loop, "next", 0), LIGHT)
    with pytest.raises(ZeroDivisionError):
        loop.round()

    assert loop.round() == ["next"]


def test_long_steps_of_a_coroutine_are_reported() -> None:
    loop = Loop()
    reported: list[int] = []

    class Pause:
        def __await__(self) -> Any:
            yield

    async def work() -> str:
        loop.ns += LONG_NS - 1
        await Pause()
        loop.ns += LONG_NS
        return "done"

    steps: Coroutine[Any, Any, str] = TimedSteps(work(), reported.append, lambda: loop.ns)
    steps.send(None)
    assert reported == []
    with pytest.raises(StopIteration) as ended:
        steps.send(None)
    assert ended.value.value == "done"
    assert reported == [LONG_NS]


def test_a_new_connection_whose_first_turn_was_long_is_costly_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr("headrace.server.loop.turns.thread_time_ns", lambda: loop.ns)
    pace = Pace(loop.turns)
    assert pace.kind() == FRESH

    pace.note_long(HEAVY_NS)
    pace.ended(HEAVY_NS)
    assert pace.kind() == HEAVY

    pace.ended(HEAVY_NS - 1)
    assert pace.kind() == LIGHT
