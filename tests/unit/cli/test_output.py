import json
import re

import pytest

from headrace.cli import output
from headrace.cli.group_layout import moment
from headrace.cli.output import Column
from headrace.cli.pipeline_tables import _print_trace


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KB"),
        (200 * 1024, "200 KB"),
        (5 * 1024**2, "5.0 MB"),
        (3 * 1024**4, "3.0 TB"),
    ],
)
def test_sizes_are_short(number: int, text: str) -> None:
    assert output.size(number) == text


def test_counts_have_a_plural() -> None:
    assert output.count(1, "record") == "1 record"
    assert output.count(2000, "record") == "2,000 records"


@pytest.mark.parametrize(("duration", "text"), [(0.041, "0.04 s"), (12.34, "12.3 s"), (200, "3 min 20 s")])
def test_durations_are_short(duration: float, text: str) -> None:
    assert output.seconds(duration) == text


@pytest.mark.parametrize(
    ("time_ms", "text"),
    [
        (1_763_719_200_123, "2025-11-21T10:00:00.123Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_000, "253402300800000"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
    ],
)
def test_a_time_that_the_calendar_lacks_is_in_milliseconds(time_ms: int, text: str) -> None:
    assert output.utc(time_ms) == text


def test_a_table_in_a_pipe_is_tab_separated_with_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table([Column("Topic"), Column("Set on", number=True)], [["a b", 1000], ["c", None]])
    assert capsys.readouterr().out == "topic\tset_on\na b\t1000\nc\t-\n"


def test_json_does_not_escape_characters(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_json({"name": "é"})
    out = capsys.readouterr().out
    assert "é" in out
    assert json.loads(out) == {"name": "é"}


def test_errors_go_to_standard_error_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    output.tell_error("it broke", "Repair it.")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "Error: it broke\nRepair it.\n"


def test_names_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "stdout_is_terminal", lambda: True)
    forged = "a\x1b]0;title\x07\x85"
    output.print_table([Column("Client")], [[forged]])
    output.print_pairs([("Client", forged)])
    output.tell_error(f"group '{forged}' failed", None)
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("a\\x1b]0;title\\x07\\x85") == 3


def test_messages_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for say in (output.tell, output.warn):
        say("id 'a\x1b[2J\x9b\u202e\nDeleted group b'")
        assert capsys.readouterr().err == r"id 'a\x1b[2J\x9b\u202e\nDeleted group b'" + "\n"


def test_an_error_and_its_hint_are_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    output.tell_error("group 'a' has members: app\nDeleted group b", "Stop app\nDeleted group b first.")
    assert capsys.readouterr().err.splitlines() == [
        r"Error: group 'a' has members: app\nDeleted group b",
        r"Stop app\nDeleted group b first.",
    ]


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
    forged = "range\nLag   0\t"
    output.print_table([Column("Assignor")], [[forged]])
    output.print_pairs([("Assignor", forged), ("Health", output.Lines("one\n  two"))])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == ["Assignor", r"range\nLag   0\t", r"Assignor   range\nLag   0\t", "Health     one", "  two"]


def test_a_traced_key_cannot_forge_a_row(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from headrace.pipeline.engine.upkeep.trace import Reached

    monkeypatch.setattr(output, "stdout_is_terminal", lambda: True)
    row = Reached(job="views", table="views", row={"page": "/\nusers"}, topic="views", key="/\nusers")
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
