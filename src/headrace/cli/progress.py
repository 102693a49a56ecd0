"""Progress of a long `headrace produce`, as a line on standard error."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headrace.cli import output
from headrace.cli.record_sources import Source

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_SHOW_EVERY_S = 0.2


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
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

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
        if self._progress is None:
            self._start()
        if self._progress is not None and self._task is not None:
            rate = delivered / (now - self._started)
            text = f"{output.count(delivered, 'record')}, {rate:,.0f}/s"
            self._progress.update(self._task, completed=self._size, text=text, refresh=True)

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn

        bar = [BarColumn(), TaskProgressColumn()] if self._total else []
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn(self._topic, markup=False),
            *bar,
            TextColumn("{task.fields[text]}", markup=False),
            console=Console(stderr=True),
            transient=True,
            auto_refresh=False,
        )
        self._task = self._progress.add_task("", total=self._total, text="")
        self._progress.start()
