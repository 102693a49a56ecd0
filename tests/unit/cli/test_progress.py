import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from rich.progress import TextColumn

from headrace.cli import output
from headrace.cli.progress import Bar


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bytes]]:
    """A terminal on standard error. Yield a function that closes it, and returns what it showed."""
    end, stderr = os.openpty()
    os.set_blocking(end, False)
    monkeypatch.setenv("TERM", "xterm")

    def close() -> bytes:
        try:
            return os.read(end, 10_000)
        except BlockingIOError:
            return b""
        finally:
            os.close(end)

    with os.fdopen(stderr, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        yield close


def bar() -> Bar:
    return Bar(TextColumn("{task.fields[text]}"))


def test_a_closed_terminal_ends_only_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as close:
        with bar() as shown:
            shown.show("1 record")
            assert b"1 record" in close()
            shown.show("2 records")
        output.tell("Sent 2 records")
