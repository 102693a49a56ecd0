"""Print the results of the demo: tables and charts."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headrace.pipeline.demo import charts
from headrace.pipeline.demo.state import DemoState
from headrace.pipeline.demo.view import plain_table
from headrace.wording import count

_HEIGHT: Final = 6
_DAYS: Final = 14
_LABEL: Final = 8
_BAR_WIDTH: Final = 24
_COLOUR: Final = "cyan"
_UNITS: Final = ((7 * 86_400, "week"), (86_400, "day"), (3600, "hour"), (60, "minute"))


def print_results(console: Console, state: DemoState, report: Mapping[str, Any], seconds: float) -> None:
    """Print the report without its empty parts."""
    say = _Printer(console)
    say.summary(state, report, seconds)
    say.traffic(report["traffic"])
    say.pages(report["top_pages"])
    side_by_side = Table.grid(padding=(0, 6))
    side_by_side.add_row(_status(report["status"]), _days(report["days"], report["visitors"]))
    if report["requests"]:
        say.block(side_by_side)
    say.referrers(report["referrers"])
    say.crawlers(report["crawlers"])
    say.quarantined(report["quarantined"])


class _Printer:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._ascii = console.options.ascii_only

    def line(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def block(self, what: Table | Text) -> None:
        self._console.print(what)
        self._console.print()

    def summary(self, state: DemoState, report: Mapping[str, Any], seconds: float) -> None:
        requests, views, sessions = report["requests"], report["page_views"], report["sessions"]
        bad = sum(row["count"] for row in report["quarantined"] if row["job"] == "events")
        self.line(
            f"[bold]{count(requests, 'request')}[/] from {count(report['clients'], 'client')}, "
            f"{count(bad, 'line')} quarantined; {count(state.published, 'result')} published, in {seconds:.0f} s"
        )
        self.line(f"{count(views['views'], 'view')} of {count(views['pages'], 'page')}")
        if sessions["ended"]:
            self.line(
                f"{count(sessions['ended'], 'session')} ended, {sessions['of_one_request']:,} with one request; "
                f"{sessions['requests_on_average']:g} requests on average. The latest sessions are still open."
            )
        if state.restarts:
            self.line(f"Spark exited {count(state.restarts, 'time')} and was restarted from its checkpoints.")
        self.line("")

    def traffic(self, traffic: Mapping[str, Any]) -> None:
        """Print requests over time as columns, with a value for every interval from the first to the last."""
        if not traffic["buckets"]:
            return
        by_time = {datetime.fromisoformat(row["start"]): row for row in traffic["buckets"]}
        first, last, seconds = min(by_time), max(by_time), traffic["seconds"]
        intervals = (last - first) // timedelta(seconds=seconds) + 1
        room = max(1, self._console.width - _LABEL)
        # On a narrow terminal, several intervals share a column. On a wide one, an interval has several columns.
        together, width = -(-intervals // room), max(1, min(4, room // intervals))
        values = [0] * -(-intervals // together)
        for moment, row in by_time.items():
            values[(moment - first) // timedelta(seconds=seconds * together)] += row["requests"]
        errors = sum(row["errors"] for row in traffic["buckets"])
        self.line(
            f"[bold]Requests by {_interval(seconds * together)} (UTC)[/]   {errors / (sum(values) or 1):.1%} errors"
        )
        lines = charts.columns(values, _HEIGHT, ascii_only=self._ascii)
        labels = [f"{max(values):,}", *[""] * (_HEIGHT - 2), "0"]
        for label, line in zip(labels, lines, strict=True):
            wide = "".join(character * width for character in line)
            self._console.print(Text.assemble(f"{label:>{_LABEL - 1}} ", (wide, _COLOUR)), no_wrap=True)
        axis = _axis(first, last, len(values) * width)
        self._console.print(Text(f"{'':{_LABEL}}{axis}", "dim"), no_wrap=True)
        self.line("")

    def pages(self, pages: Sequence[Mapping[str, Any]]) -> None:
        if not pages:
            return
        table = plain_table(("Top pages", "left"), ("Views", "right"), ("", "left"))
        for row in pages:
            name = Text(row["page"], overflow="ellipsis", no_wrap=True)
            table.add_row(name, f"{row['views']:,}", self._bar(row["views"], pages[0]["views"]))
        self.block(table)

    def referrers(self, referrers: Mapping[str, Any]) -> None:
        if not referrers["hosts"]:
            return
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in referrers["requests"].items())
        self.line(f"[bold]Referrers[/]: {kinds}")
        table = plain_table(("Referring hosts", "left"), ("Requests", "right"), ("", "left"))
        for row in referrers["hosts"]:
            most = referrers["hosts"][0]["requests"]
            table.add_row(Text(row["host"]), f"{row['requests']:,}", self._bar(row["requests"], most))
        self.block(table)

    def crawlers(self, crawlers: Sequence[Mapping[str, Any]]) -> None:
        if not crawlers:
            return
        table = plain_table(("Likely crawlers", "left"), ("Requests", "right"), ("Hours", "right"), ("Why", "left"))
        for row in crawlers:
            table.add_row(row["client"], f"{row['requests']:,}", f"{row['hours']:,}", ", ".join(row["reasons"]))
        self.block(table)

    def quarantined(self, reasons: Sequence[Mapping[str, Any]]) -> None:
        if not reasons:
            return
        table = plain_table(("Quarantined because", "left"), ("Job", "left"), ("Records", "right"))
        for row in reasons:
            table.add_row(Text(row["reason"]), row["job"], f"{row['count']:,}")
        self.block(table)

    def _bar(self, value: int, most: int) -> Text:
        return Text(charts.bar(value, most, _BAR_WIDTH, ascii_only=self._ascii), _COLOUR)


def _status(counts: Mapping[str, int]) -> Table:
    table = plain_table(("Status", "left"), ("Requests", "right"))
    for status, requests in sorted(counts.items(), key=lambda item: -item[1]):
        table.add_row(status, f"{requests:,}")
    return table


def _days(requests: Mapping[str, int], visitors: Mapping[str, int]) -> Table:
    """Return a table of the last 14 days, with visitors estimated from sketches."""
    table = plain_table(("Day", "left"), ("Requests", "right"), ("Visitors (estimate)", "right"))
    for day, count_of_day in list(requests.items())[-_DAYS:]:
        table.add_row(day, f"{count_of_day:,}", f"{visitors[day]:,}" if day in visitors else "-")
    return table


def _interval(seconds: int) -> str:
    length, unit = next((length, unit) for length, unit in _UNITS if seconds % length == 0)
    number = seconds // length
    return unit if number == 1 else f"{number} {unit}s"


def _axis(first: datetime, last: datetime, width: int) -> str:
    """Return the labels of a time axis: the first time, and the last one if there is room for both."""
    style = "%Y-%m-%d %H:%M"
    left, right = first.strftime(style), last.strftime(style)
    return f"{left}{right:>{width - len(left)}}" if width > 2 * len(left) else left
