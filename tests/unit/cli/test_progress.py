import os
import select
import sys

import pytest
from rich.progress import TextColumn

from headrace.cli import output
from headrace.cli.progress import Bar


def test_a_closed_terminal_ends_only_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    end, terminal = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(terminal, "w", encoding="utf-8") as stderr, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        with Bar(TextColumn("{task.fields[text]}")) as bar:
            bar.show("1 record")
            seen = b""
            while b"1 record" not in seen and select.select([end], [], [], 10)[0]:
                seen += os.read(end, 10_000)
            assert b"1 record" in seen
            os.close(end)
            bar.show("2 records")
        output.tell("Sent 2 records")
