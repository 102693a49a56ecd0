"""Turns: who is served when, and for how long, before the loop looks at its sockets again."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.server.loop.turns import BUDGET_NS, LONG_NS, TimedSteps, Turns


class Loop:
    """Calls what is due, by a clock that only work moves."""

    def __init__(self) -> None:
        self.ns = 0
        self.calls: list[Callable[[], None]] = []
        self.done: list[str] = []
        self.turns = Turns(self.calls.append, clock=lambda: self.ns)

    def round(self) -> list[str]:
        """What was done between two looks at the sockets."""
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
        loop.turns.add(Job(loop, f"costly {number}", BUDGET_NS * 3 // 4), is_heavy=True)

    assert loop.round() == ["costly 0", "costly 1"]
    assert loop.round() == ["costly 2", "costly 3"]
    assert loop.round() == ["costly 4"]
    assert not loop.turns.is_contended
    assert loop.calls == []


def test_quick_ones_go_first_and_do_not_starve_the_others() -> None:
    loop = Loop()
    for number in range(3):
        loop.turns.add(Job(loop, "costly", BUDGET_NS), is_heavy=True)
        loop.turns.add(Job(loop, f"quick {number}", BUDGET_NS), is_heavy=False)

    assert [loop.round() for _ in range(3)] == [["quick 0", "costly"], ["quick 1", "costly"], ["quick 2", "costly"]]


def test_one_request_that_is_answered_later_begins_in_a_round() -> None:
    loop = Loop()
    for _ in range(3):
        loop.turns.add(Job(loop, "later", 0, is_waiting=True), is_heavy=True)

    assert loop.round() == ["later"]


def test_a_poll_that_has_led_to_too_much_work_makes_everybody_wait_for_a_round() -> None:
    loop = Loop()
    contended = []
    for _ in range(2):
        loop.turns.spent(BUDGET_NS // 2)
        contended.append(loop.turns.is_contended)
    assert contended == [False, True]
    assert loop.turns.must_wait(is_heavy=False)

    loop.round()
    assert not loop.turns.must_wait(is_heavy=False)


def test_while_costly_ones_wait_only_costly_ones_have_to() -> None:
    loop = Loop()
    loop.turns.add(Job(loop, "costly", 0), is_heavy=True)

    assert loop.turns.is_contended
    assert loop.turns.must_wait(is_heavy=True)
    assert not loop.turns.must_wait(is_heavy=False)


def test_a_turn_that_fails_does_not_keep_the_others_from_theirs() -> None:
    loop = Loop()

    class Broken(Job):
        def take_turn(self) -> None:
            raise ZeroDivisionError

    loop.turns.add(Broken(loop, "", 0), is_heavy=False)
    loop.turns.add(Job(loop, "next", 0), is_heavy=False)
    with pytest.raises(ZeroDivisionError):
        loop.round()

    assert loop.round() == ["next"]


def test_long_steps_of_a_coroutine_are_told() -> None:
    loop = Loop()
    took: list[int] = []

    class Pause:
        def __await__(self) -> Any:
            yield

    async def work() -> str:
        loop.ns += LONG_NS - 1
        await Pause()
        loop.ns += LONG_NS
        return "done"

    steps: Coroutine[Any, Any, str] = TimedSteps(work(), took.append, lambda: loop.ns)
    steps.send(None)
    assert took == []
    with pytest.raises(StopIteration) as ended:
        steps.send(None)
    assert ended.value.value == "done"
    assert took == [LONG_NS]
