"""Waiting for a condition instead of sleeping for a guessed time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], what: str, *, timeout_s: float = 20.0, interval_s: float = 0.02) -> T:
    """Call `condition` until it answers something true and return that; `AssertionError` after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s in vain: {what} (last answer: {answer!r})")
        time.sleep(interval_s)
