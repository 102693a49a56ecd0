"""Show the demo while it runs: as a table on a terminal, or as an occasional line in a pipe."""

import time
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headrace.pipeline.demo.state import DemoState, JobState

_PAGES_SHOWN: Final = 3
_LINE_EVERY_S: Final = 2.0
_BAR_WIDTH: Final = 24


class View:
    """A context manager that shows the demo. `show` may be called at any rate."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._spinner = Spinner("dots")
        self._printed: tuple[object, ...] = ()
        self._printed_at = 0.0
        self._introduced = False

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, state: DemoState) -> None:
        """Draw the state; in a pipe, print a line if it has changed and some time has passed."""
        if not self._introduced:
            self._introduced = True
            self._introduce(state)
        if self._live:
            self._live.update(self._picture(state), refresh=True)
        elif time.monotonic() - self._printed_at > _LINE_EVERY_S:
            self._print_line(state)

    def _introduce(self, state: DemoState) -> None:
        say = self._console.print
        say(f"[bold]Headrace[/] at {state.bootstrap}, shipping {state.source}", highlight=False)
        say(f"Data in {state.data}", highlight=False, soft_wrap=True)
        if state.resumed:
            say(f"Continuing: {state.resumed:,} lines from an earlier run are in the topic", highlight=False)
        say()

    def _print_line(self, state: DemoState) -> None:
        failures = [f"{name}: {job.failure}" for name, job in state.jobs.items() if job.state == "waiting"]
        now = (state.doing, state.shipped, state.processed, state.published, failures)
        if now == self._printed:
            return
        self._printed, self._printed_at = now, time.monotonic()
        latency = "" if state.latency_s is None else f", {state.latency_s:.1f} s latency"
        self._console.print(
            f"{state.doing}: {state.shipped:,} shipped, {state.shipped_per_s:,.0f} lines/s, "
            f"{state.lag:,} lag{latency}, {state.published:,} results",
            *failures,
            sep="\n",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )

    def _picture(self, state: DemoState) -> Group:
        self._spinner.update(text=Text(state.doing))
        shipping = Table.grid(padding=(0, 2))
        count = f"{state.shipped:,}" + ("" if state.expected is None else f" of {state.expected:,}")
        shipping.add_row(
            "Shipped",
            ProgressBar(state.expected, state.shipped, width=_BAR_WIDTH),
            f"{count} lines",
            f"{state.shipped_per_s:,.0f} lines/s",
        )
        parts: list[Any] = [shipping, Text(), _jobs(state)]
        parts += [
            Text(f"{name}: {job.failure}", "yellow") for name, job in state.jobs.items() if job.state == "waiting"
        ]
        if state.top_pages:
            parts += [Text(), _top_pages([state.top_pages[rank] for rank in sorted(state.top_pages)][:_PAGES_SHOWN])]
        return Group(*parts, Text(), self._spinner)


def _jobs(state: DemoState) -> Table:
    table = plain_table(
        ("Job", "left"),
        ("State", "left"),
        ("Batch", "right"),
        ("Rows/s", "right"),
        ("Lines", "right"),
        ("Lag", "right"),
        ("Latency", "right"),
        ("Results", "right"),
    )
    for name, job in state.jobs.items():
        table.add_row(name, *_cells(job, state.shipped))
    return table


def _cells(job: JobState, shipped: int) -> list[str]:
    return [
        job.state,
        "-" if job.batch is None else str(job.batch),
        "-" if job.batch is None else f"{job.rows_per_s:,.0f}",
        f"{job.lines:,}",
        f"{max(0, shipped - job.lines):,}",
        "-" if job.latency_s is None else f"{job.latency_s:.1f} s",
        "-" if job.published is None else f"{job.published:,}",
    ]


def _top_pages(pages: list[dict[str, Any]]) -> Table:
    table = plain_table(("Top pages", "left"), ("Views", "right"))
    for row in pages:
        table.add_row(Text(row["page"], overflow="ellipsis", no_wrap=True), f"{row['views']:,}")
    return table


def plain_table(*columns: tuple[str, Any]) -> Table:
    """Return a table without borders."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, justify in columns:
        table.add_column(title, justify=justify)
    return table
