import io
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console

from headrace.cli import demo
from headrace.cli.main import app
from headrace.pipeline.demo.results import print_results
from headrace.pipeline.demo.state import DemoState, JobState
from headrace.pipeline.demo.view import View

REPORT: dict[str, Any] = {
    "requests": 1234,
    "clients": 5,
    "status": {"200": 1200, "404": 34},
    "days": {"2015-05-17": 1234},
    "visitors": {"2015-05-17": 5},
    "page_views": {"views": 800, "pages": 1},
    "sessions": {"ended": 9, "of_one_request": 4, "requests_on_average": 2.5, "seconds_on_average": 60.0},
    "top_pages": [{"page": "/[bold]", "views": 7}],
    "traffic": {
        "seconds": 3600,
        "buckets": [
            {"start": "2015-05-17T10:00:00Z", "requests": 8, "errors": 1},
            {"start": "2015-05-17T12:00:00Z", "requests": 4, "errors": 0},
        ],
    },
    "referrers": {"requests": {"external": 3, "missing": 1}, "hosts": [{"host": "example.org", "requests": 3}]},
    "crawlers": [{"client": "192.0.2.1", "requests": 6, "hours": 2, "reasons": ["read robots.txt"]}],
    "quarantined": [{"job": "events", "reason": "the line is empty", "count": 1}],
}
EMPTY: dict[str, Any] = {name: type(part)() for name, part in REPORT.items()} | {
    "page_views": {"views": 0, "pages": 0},
    "sessions": {"ended": 0},
    "traffic": {"seconds": 60, "buckets": []},
    "referrers": {"requests": {}, "hosts": []},
}


def _console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=100, force_terminal=terminal, color_system=None), out


def _state() -> DemoState:
    return DemoState(
        source="access.log", bootstrap="127.0.0.1:9092", data=Path("/demo"), lake="/demo/lake", expected=1234
    )


def test_a_pipe_gets_a_line_only_after_a_change() -> None:
    console, out = _console(terminal=False)
    state = _state()
    with View(console) as view:
        view.show(state)
        view.show(state)
    printed = out.getvalue()
    assert printed.count("0 shipped") == 1
    assert "\x1b" not in printed


def test_a_terminal_shows_rates_lag_latency_failures_and_top_pages() -> None:
    console, out = _console(terminal=True)
    state = _state()
    state.shipped, state.shipped_per_s = 1234, 250.0
    state.jobs = {
        "page_views": JobState(
            state="running", batch=3, rows_per_s=321.0, lines=1000, latency_s=1.5, published=77, failure=None
        ),
        "sessions": JobState(state="waiting", failure="no space left"),
    }
    state.top_pages = {1: {"rank": 1, "page": "/[bold]", "views": 7}}
    with View(console) as view:
        view.show(_state())
        view.show(state)
    printed = out.getvalue()
    for words in ("1,234 of 1,234 lines", "250 lines/s", "page_views", "321", "1,000", "234", "1.5 s", "77", "/[bold]"):
        assert words in printed
    assert "sessions: no space left" in printed


def _printed(report: dict[str, Any]) -> list[str]:
    console, out = _console(terminal=False)
    print_results(console, _state(), report, 12.3)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_the_results_show_every_part_once_and_a_gap_for_an_hour_without_requests() -> None:
    lines = _printed(REPORT)
    assert lines[0].startswith("1,234 requests from 5 clients, 1 line quarantined")
    for line in (
        "800 views of 1 page",
        "200 1,200 2015-05-17 1,234 5",
        "Requests by hour (UTC) 8.3% errors",
        "8 ████",
        "0 ████ ████",
        "192.0.2.1 6 2 read robots.txt",
        "the line is empty events 1",
    ):
        assert line in lines
    for start in ("9 sessions ended, 4 with one request; 2.5 requests on average", "/[bold] 7 █", "example.org 3 █"):
        assert [line for line in lines if line.startswith(start)], start


def test_a_log_without_lines_has_no_tables() -> None:
    assert [line for line in _printed(EMPTY) if line] == [
        "0 requests from 0 clients, 0 lines quarantined; 0 results published, in 12 s",
        "0 views of 0 pages",
    ]


@pytest.mark.parametrize("own_broker", [True, False])
def test_the_demo_ends_with_commands_that_exist(own_broker: bool) -> None:
    console, out = _console(terminal=False)
    demo._print_next_steps(console, _state(), own_broker, "t.")
    printed = [shlex.split(line) for line in out.getvalue().splitlines() if line.startswith("  ")]
    # `headrace`, or `python -m headrace`
    commands = [words[1:] if words[0].endswith("headrace") else words[3:] for words in printed]
    for words in commands:
        _parse(words)
    assert [" ".join(words[:2]) for words in commands] == [
        *("pipeline query", "pipeline query", "pipeline status"),
        *(["start --data"] if own_broker else []),
        *("topics list", "groups list", "consume t.top-pages"),
    ]


@cache
def _command_line() -> Any:
    return typer.main.get_command(app)


def _parse(words: list[str]) -> None:
    """Parse a command of `headrace`, without running it. Raises an exception if it does not exist."""
    command = _command_line()
    name = "headrace"
    while hasattr(command, "resolve_command"):
        context = command.context_class(command, info_name=name)
        name, command, words = command.resolve_command(context, words)
    command.make_context(name, list(words))
