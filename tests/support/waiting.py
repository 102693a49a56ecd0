"""Wait for a condition instead of sleeping."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], description: str, *, timeout_s: float = 60.0, interval_s: float = 0.02) -> T:
    """Poll `condition` and return its first true result. Raises AssertionError after `timeout_s`.

    The limit ends a wait that has no end. It says nothing about speed, which depends on the load of the machine.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {description} (last result: {result!r})")
        time.sleep(interval_s)
