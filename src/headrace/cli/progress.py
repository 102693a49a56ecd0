"""Progress of long commands, as a line on standard error."""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.cli import output
from headrace.cli.record_sources import Source

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_SHOW_EVERY_S = 0.2


class Bar:
    """A line that is replaced as a command progresses, on a terminal, until the terminal is closed."""

    def __init__(self, *columns: "ProgressColumn", total: int | None = None) -> None:
        """`columns` may show the field `text`."""
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        self._task = self._progress.add_task("", total=total, text="")
        self._is_shown = False

    def __enter__(self) -> Self:
        with output.telling():
            self._progress.start()
            self._is_shown = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shown:
            with output.telling():
                self._progress.stop()

    def show(self, text: str = "", **done: Any) -> None:
        """Show the text and what is `done`, as arguments of rich's `Progress.update`."""
        if self._is_shown:
            with output.telling():
                self._progress.update(self._task, text=text, refresh=True, **done)


class SendProgress:
    """Counts records; on a terminal it shows count, rate, and a bar if the size of the input is known."""

    def __init__(self, topic: str, sources: Sequence[Source], *, enabled: bool) -> None:
        self.records = 0
        self._size = 0
        self._topic = topic
        sizes = [source.size for source in sources]
        self._total = None if None in sizes else sum(size or 0 for size in sizes)
        # No progress line while a user types records.
        self._enabled = enabled and output.is_terminal(sys.stderr) and not any(s.is_terminal for s in sources)
        self._started = self._shown = time.monotonic()
        self._bar: Bar | None = None
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ending.close()

    def read(self, size: int) -> None:
        """Count a record that was read; its line has `size` bytes."""
        self.records += 1
        self._size += size

    def show(self, delivered: int) -> None:
        """Update the line, at most five times a second."""
        now = time.monotonic()
        if not self._enabled or now - self._shown < _SHOW_EVERY_S:
            return
        self._shown = now
        self._bar = self._bar or self._start()
        rate = delivered / (now - self._started)
        self._bar.show(f"{output.count(delivered, 'record')}, {rate:,.0f}/s", completed=self._size)

    def _start(self) -> Bar:
        from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn

        bar = [BarColumn(), TaskProgressColumn()] if self._total else []
        topic, text = TextColumn(self._topic, markup=False), TextColumn("{task.fields[text]}", markup=False)
        return self._ending.enter_context(Bar(SpinnerColumn(), topic, *bar, text, total=self._total))
