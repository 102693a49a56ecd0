import io
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.pipeline.demo.state import DemoState, JobState
from headrace.pipeline.demo.view import View, print_report

REPORT: dict[str, Any] = {
    "requests": 1234,
    "clients": 5,
    "rejected": 1,
    "status": {"200": 1200, "404": 34},
    "days": {"2015-05-17": 1234},
    "top_pages": [{"page": "/[bold]", "views": 7, "requests": 9}],
    "busiest_minutes": [{"minute": "2015-05-17T10:05:00Z", "requests": 8, "error_rate": 0.125}],
    "crawlers": [{"client": "192.0.2.1", "requests": 6, "hours": 2, "reasons": ["read robots.txt"]}],
    "reasons": [{"reason": "the line is empty", "count": 1}],
}


def _console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, force_terminal=terminal, color_system=None), out


def _state() -> DemoState:
    return DemoState(source="access.log", bootstrap="127.0.0.1:9092", data=Path("/demo"), expected=1234)


def test_a_pipe_gets_a_line_only_after_a_change() -> None:
    console, out = _console(terminal=False)
    state = _state()
    with View(console) as view:
        view.show(state)
        view.show(state)
    printed = out.getvalue()
    assert printed.count("0 shipped") == 1
    assert "\x1b" not in printed


def test_a_terminal_shows_queries_lag_and_top_pages() -> None:
    console, out = _console(terminal=True)
    state = _state()
    state.shipped = 1234
    state.jobs = {"page-views": JobState(batch=3, records_in=1000, records_out=77)}
    state.top_pages = {1: {"rank": 1, "page": "/[bold]", "views": 7, "requests": 9}}
    with View(console) as view:
        view.show(state)
    printed = out.getvalue()
    for words in ("1,234 of 1,234 lines", "page-views", "1,000", "234", "77", "/[bold]"):
        assert words in printed


def test_the_report_shows_every_result_once() -> None:
    console, out = _console(terminal=False)
    print_report(console, _state(), REPORT, 12.3)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[0].startswith("1,234 requests of 5 clients, 1 line rejected")
    for line in (
        "200 1,200 2015-05-17 1,234",
        "/[bold] 7 9",
        "2015-05-17 10:05 8 12.5%",
        "192.0.2.1 6 2 read robots.txt",
        "the line is empty 1",
    ):
        assert line in lines
