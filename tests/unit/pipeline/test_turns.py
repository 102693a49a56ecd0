"""Batches that take turns."""

import threading
import time
from collections.abc import Callable

from headrace.pipeline.engine.scheduling.turns import Turns

_TIMEOUT_S = 5.0


def started(
    turns: Turns, name: str, begun: list[str], until: threading.Event, interval_s: float = 0.0
) -> threading.Thread:
    def run() -> None:
        with turns.turn(interval_s):
            begun.append(name)
            until.wait(_TIMEOUT_S)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_batches_wait_for_their_turns_in_the_order_in_which_they_come() -> None:
    turns, begun, ends = Turns(1), list[str](), {name: threading.Event() for name in "abc"}
    threads = []
    for number, (name, end) in enumerate(ends.items()):
        threads.append(started(turns, name, begun, end))
        wait_for(lambda number=number: len(begun) + len(turns._waiting) == number + 1)  # type: ignore[misc]
    assert begun == ["a"]
    for number, end in enumerate(ends.values()):
        end.set()
        threads[number].join(_TIMEOUT_S)
    assert begun == ["a", "b", "c"]


def test_a_job_with_a_shorter_interval_goes_first() -> None:
    turns, begun, first, others = Turns(1), list[str](), threading.Event(), threading.Event()
    threads = [started(turns, "first", begun, first)]
    wait_for(lambda: begun == ["first"])
    for number, (name, interval_s) in enumerate((("slow", 10.0), ("quick", 1.0))):
        threads.append(started(turns, name, begun, others, interval_s))
        wait_for(lambda number=number: len(turns._waiting) == number + 1)  # type: ignore[misc]
    others.set()
    first.set()
    for thread in threads:
        thread.join(_TIMEOUT_S)
    assert begun == ["first", "quick", "slow"]


def test_slow_jobs_leave_a_turn_to_the_quick_ones() -> None:
    turns, begun, end = Turns(2, reserved=True), list[str](), threading.Event()
    threads = [started(turns, "slow", begun, end, 10.0)]
    wait_for(lambda: begun == ["slow"])
    threads.append(started(turns, "slow, too", begun, end, 10.0))
    wait_for(lambda: len(turns._waiting) == 1)
    threads.append(started(turns, "quick", begun, end, 1.0))
    wait_for(lambda: begun == ["slow", "quick"])
    end.set()
    for thread in threads:
        thread.join(_TIMEOUT_S)
    assert begun == ["slow", "quick", "slow, too"]
    assert (turns._free, turns._free_for_slow) == (2, 1)


def test_a_batch_that_hangs_stops_the_others_only_for_a_while() -> None:
    turns, begun, end = Turns(1, longest_s=0.01), list[str](), threading.Event()
    threads = [started(turns, name, begun, end) for name in "ab"]
    wait_for(lambda: len(begun) == 2)
    end.set()
    for thread in threads:
        thread.join(_TIMEOUT_S)
    assert sorted(begun) == ["a", "b"]


def test_a_batch_that_fails_ends_its_turn() -> None:
    turns = Turns(1)
    try:
        with turns.turn(1.0):
            raise ValueError
    except ValueError:
        pass
    with turns.turn(1.0):
        assert not turns._waiting
        assert turns._free == 0
