"""Show the demo: live on a terminal, with tables at the end; in a pipe, an occasional line."""

import time
from types import TracebackType
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from headrace.pipeline.demo.state import DemoState

_SHOWN_LIVE: Final = 5
_LINE_EVERY_S: Final = 2.0
_BAR_WIDTH: Final = 30


class View:
    """A context that shows the demo. `show` may be called at any rate."""

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
            self._console.print(f"[bold]Headrace[/] at {state.bootstrap}, shipping {state.source}", highlight=False)
            self._console.print(f"Data in {state.data}\n", highlight=False)
        if self._live:
            self._live.update(self._picture(state), refresh=True)
        elif time.monotonic() - self._printed_at > _LINE_EVERY_S:
            self._print_line(state)

    def _print_line(self, state: DemoState) -> None:
        now = (state.doing, state.shipped, state.records_in, state.records_out)
        if now == self._printed:
            return
        self._printed, self._printed_at = now, time.monotonic()
        self._console.print(
            f"{state.doing}: {state.shipped:,} shipped, {state.records_in:,} in, {state.lag:,} lag, "
            f"{state.records_out:,} out",
            highlight=False,
            soft_wrap=True,
        )

    def _picture(self, state: DemoState) -> Group:
        self._spinner.update(text=Text(state.doing))
        shipping = Table.grid(padding=(0, 2))
        count = f"{state.shipped:,}" + ("" if state.expected is None else f" of {state.expected:,}")
        shipping.add_row("Shipped", ProgressBar(state.expected, state.shipped, width=_BAR_WIDTH), f"{count} lines")
        parts: list[Any] = [shipping, Text(), self._queries(state)]
        if state.top_pages:
            parts += [Text(), _top_pages([state.top_pages[rank] for rank in sorted(state.top_pages)][:_SHOWN_LIVE])]
        return Group(*parts, Text(), self._spinner)

    def _queries(self, state: DemoState) -> Table:
        table = _table(("Query", "left"), ("Batch", "right"), ("In", "right"), ("Lag", "right"), ("Out", "right"))
        for name, job in state.jobs.items():
            batch = "-" if job.batch is None else str(job.batch)
            lag = max(0, state.shipped - job.records_in)
            table.add_row(name, batch, f"{job.records_in:,}", f"{lag:,}", f"{job.records_out:,}")
        if not state.jobs:
            table.add_row(Text("none yet", "dim"), *4 * ["-"])
        return table


def print_report(console: Console, state: DemoState, report: dict[str, Any], seconds: float) -> None:
    """Print the results as tables."""
    console.print(
        f"[bold]{_count(report['requests'], 'request')}[/] of {_count(report['clients'], 'client')}, "
        f"{_count(report['rejected'], 'line')} rejected; {_count(state.records_out, 'record')} published, "
        f"in {seconds:.0f} s.",
        highlight=False,
        soft_wrap=True,
    )
    if state.restarts:
        console.print(f"Spark exited {_count(state.restarts, 'time')} and was restarted from its checkpoints.")
    console.print()
    days = _table(("Day", "left"), ("Requests", "right"))
    for day, count in report["days"].items():
        days.add_row(day, f"{count:,}")
    status = _table(("Status", "left"), ("Requests", "right"))
    for code, count in sorted(report["status"].items(), key=lambda item: -item[1]):
        status.add_row(code, f"{count:,}")
    side_by_side = Table.grid(padding=(0, 6))
    side_by_side.add_row(status, days)
    console.print(side_by_side, Text())
    if report["top_pages"]:
        console.print(_top_pages(report["top_pages"]), Text())
    if report["busiest_minutes"]:
        minutes = _table(("Busiest minutes (UTC)", "left"), ("Requests", "right"), ("Errors", "right"))
        for row in report["busiest_minutes"]:
            minutes.add_row(_moment(row["minute"]), f"{row['requests']:,}", f"{row['error_rate']:.1%}")
        console.print(minutes, Text())
    if report["crawlers"]:
        crawlers = _table(("Behave like crawlers", "left"), ("Requests", "right"), ("Hours", "right"), ("Why", "left"))
        for row in report["crawlers"]:
            crawlers.add_row(row["client"], f"{row['requests']:,}", f"{row['hours']:,}", ", ".join(row["reasons"]))
        console.print(crawlers, Text())
    if report["reasons"]:
        reasons = _table(("Rejected because", "left"), ("Lines", "right"))
        for row in report["reasons"]:
            reasons.add_row(Text(row["reason"]), f"{row['count']:,}")
        console.print(reasons, Text())


def _top_pages(pages: list[dict[str, Any]]) -> Table:
    table = _table(("Top pages", "left"), ("Views", "right"), ("Requests", "right"))
    for row in pages:
        table.add_row(Text(row["page"], overflow="ellipsis", no_wrap=True), f"{row['views']:,}", f"{row['requests']:,}")
    return table


def _table(*columns: tuple[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for title, justify in columns:
        table.add_column(title, justify=justify)
    return table


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _moment(iso: str) -> str:
    return iso.replace("T", " ").removesuffix(":00Z")
