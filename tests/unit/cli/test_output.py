import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli import output
from headrace.cli.group_layout import moment
from headrace.cli.output import Column
from headrace.cli.pipeline_tables import _print_trace


def test_sizes_counts_and_durations_are_short() -> None:
    sizes = (0, 1023, 1536, 200 * 1024, 5 * 1024**2, 3 * 1024**4)
    assert [output.size(number) for number in sizes] == ["0 B", "1023 B", "1.5 KB", "200 KB", "5.0 MB", "3.0 TB"]
    assert [output.count(number, "record") for number in (1, 2000)] == ["1 record", "2,000 records"]
    assert [output.seconds(duration) for duration in (0.041, 12.34, 200)] == ["0.04 s", "12.3 s", "3 min 20 s"]


def test_a_time_outside_the_calendar_is_in_milliseconds() -> None:
    texts = {
        1_763_719_200_123: "2025-11-21T10:00:00.123Z",
        -1: "1969-12-31T23:59:59.999Z",
        253_402_300_799_999: "9999-12-31T23:59:59.999Z",
        253_402_300_800_000: "253402300800000",
        2**63 - 1: "9223372036854775807",
        -(2**63): "-9223372036854775808",
    }
    assert {time_ms: output.utc(time_ms) for time_ms in texts} == texts


def test_a_table_in_a_pipe_is_tab_separated_with_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table([Column("Topic"), Column("Set on", number=True)], [["a b", 1000], ["c", None]])
    assert capsys.readouterr().out == "topic\tset_on\na b\t1000\nc\t-\n"


def test_messages_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for say in (output.tell, output.warn):
        say("id 'a\x1b[2J\x9b\u202e\nDeleted group b'")
        assert capsys.readouterr().err == r"id 'a\x1b[2J\x9b\u202e\nDeleted group b'" + "\n"
    output.tell_error("group 'a\x85' has members: app\nDeleted group b", "Stop app\nDeleted group b\x07 first.")
    errors = [r"Error: group 'a\x85' has members: app\nDeleted group b", r"Stop app\nDeleted group b\x07 first."]
    assert capsys.readouterr() == ("", "\n".join([*errors, ""]))
    output.tell_error("it broke", None)
    assert capsys.readouterr().err == "Error: it broke\n"


def test_names_cannot_forge_rows_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    forged = "x\ty\nfoo\tclassic\x1b\x85"
    output.print_table([Column("Group"), Column("Type")], [[forged, "classic"], ["café\u00a0\u202e", "a\\tb"]])
    output.print_pairs([("Group", forged)])
    escaped = r"x\ty\nfoo\tclassic\x1b\x85"
    assert capsys.readouterr().out.split("\n") == [
        "group\ttype",
        f"{escaped}\tclassic",
        "café\u00a0\u202e\ta\\tb",
        f"group\t{escaped}",
        "",
    ]


def test_names_cannot_forge_rows_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "stdout_is_terminal", lambda: True)
    forged = "range\nLag   0\t\x1b]0;title\x07\x85"
    output.print_table([Column("Assignor")], [[forged]])
    output.print_pairs([("Assignor", forged), ("Health", output.Lines("one\n  two"))])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    escaped = r"range\nLag   0\t\x1b]0;title\x07\x85"
    assert lines == ["Assignor", escaped, f"Assignor   {escaped}", "Health     one", "  two"]


def test_a_traced_key_cannot_forge_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "stdout_is_terminal", lambda: True)
    row: Any = SimpleNamespace(table="views", row={"page": "/\nusers"}, topic="views", key="/\nusers", is_written=True)
    _print_trace([row])
    assert capsys.readouterr().out == "views (topic views, key /\\nusers)\n  page   /\\nusers\n"


def test_dates_and_times_on_a_terminal_are_separated_by_a_space(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "stdout_is_terminal", lambda: True)
    output.print_pairs([("Started", moment(1_763_719_200_123, on_terminal=True))])
    assert re.fullmatch(r"Started   \d\d-\d\d\xa0\d\d:\d\d:\d\d\n", capsys.readouterr().out)


def test_json_contains_no_commands_for_terminals(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"client_id": "\x9b\x7fé"})
    printed = capsys.readouterr().out
    assert r"\u009b\u007fé" in printed
    assert json.loads(printed) == {"client_id": "\x9b\x7fé"}
