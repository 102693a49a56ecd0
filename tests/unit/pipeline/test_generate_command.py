"""`headrace pipeline generate` into a directory, and its usage errors."""

import json
from pathlib import Path

import typer
from typer.testing import CliRunner, Result

from headrace.cli import pipeline_generate
from headrace.cli.help_pages import Command
from headrace.cli.main import Commands

app = typer.Typer(cls=Commands)
app.callback()(lambda: None)
app.command("generate", cls=Command, epilog=pipeline_generate.EPILOG)(pipeline_generate.generate)


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["generate", *words], prog_name="headrace pipeline")


def test_a_log_and_its_truth_are_written(tmp_path: Path) -> None:
    result = run("--output", str(tmp_path / "log"), "--lines", "30")
    assert result.exit_code == 0
    assert len((tmp_path / "log/access.log").read_bytes().splitlines()) == 30
    assert f"30 lines to {tmp_path}/log/access.log" in result.stderr
    assert result.stdout == ""


def test_all_options_are_parameters_in_the_printed_totals(tmp_path: Path) -> None:
    when = ("--start", "2015-05-17T10:00:00Z", "--lines", "9", "--hours", "0.1", "--rate", "1")
    mishaps = ("--late", "0.1", "--torn", "0.2", "--duplicates", "0.3")
    others = ("--seed", "5", "--visitors", "400", "--partitions", "4", "--json")
    result = run("--output", str(tmp_path / "log"), *when, *mishaps, *others)
    totals = json.loads(result.stdout)
    assert totals == json.loads((tmp_path / "log/truth/totals.json").read_text())
    assert totals["parameters"] == {
        "seed": 5,
        "lines": 9,
        "hours": 0.1,
        "start": 1431856800,
        "rate": 1.0,
        "visitors": 400,
        "late": 0.1,
        "torn": 0.2,
        "duplicates": 0.3,
        "partitions": 4,
    }


def test_nothing_is_said_if_quiet(tmp_path: Path) -> None:
    result = run("--output", str(tmp_path / "log"), "--lines", "30", "--quiet")
    assert (result.exit_code, result.output) == (0, "")


def test_impossible_options_are_refused() -> None:
    for words, exit_code, message in (
        ("", 2, "give --output or --topic"),
        ("--output unused --late 2", 1, "late is 2: give a share between 0 and 1"),
        ("--output unused --start soon", 2, "--start: 'soon' is not a valid time"),
    ):
        result = run(*words.split())
        assert (result.exit_code, message in result.stderr) == (exit_code, True), words
