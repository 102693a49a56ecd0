"""The command line without a cluster: help, usage errors, nobody there."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli.main import app
from tests.support.ports import free_port

runner = CliRunner()

COMMANDS = [
    ["start"],
    ["demo"],
    ["topics"],
    ["topics", "list"],
    ["topics", "create"],
    ["topics", "describe"],
    ["topics", "alter"],
    ["topics", "delete"],
    ["produce"],
    ["consume"],
]


def test_the_version_is_printed() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.output) == (0, f"headrace {__version__}\n")


def test_help_lists_the_commands() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in ("start", "demo", "topics", "produce", "consume"):
        assert name in result.output


@pytest.mark.parametrize("command", [c for c in COMMANDS if c != ["topics"]], ids=" ".join)
def test_every_command_explains_itself_with_examples(command: list[str]) -> None:
    result = runner.invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert "headrace " + " ".join(command) in result.output


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", "No such command"),
        ("topics create", "Missing argument"),
        ("topics create t --partitions 0", "greater than or equal to 1"),
        ("topics create t --config retention.ms", "'retention.ms' is not KEY=VALUE"),
        ("topics alter t", "nothing to change"),
        ("topics delete t", "deleting needs a yes"),
        ("produce t --key k --key-separator :", "both say what the key is"),
        ("produce t --jsonl --key k", "have their own keys"),
        ("produce t --keep-partitions", "goes with --jsonl"),
        ("produce t --idempotent --acks 1", "needs --acks all"),
        ("produce t --compression rar", "rar"),
        ("consume t --from nowhere", "is not a valid position"),
        ("consume t --group g --partition 1", "shares out the partitions itself"),
        ("consume t --jsonl --print-key", "each say what a line is"),
        ("consume t --format {nothing}", "is no field of a record"),
        ("start --listen here", "is not HOST:PORT"),
        ("start --set x", "is not KEY=VALUE"),
        ("topics list --bootstrap host:port", "is not HOST:PORT"),
    ],
)
def test_a_command_line_that_makes_no_sense_ends_with_2(line: str, complaint: str) -> None:
    result = runner.invoke(app, line.split(), env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert complaint in result.output


@pytest.mark.parametrize("line", ["topics list", "produce t", "consume t", "topics describe t"])
def test_where_nobody_listens_the_answer_is_quick_and_says_what_to_do(line: str) -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    result = runner.invoke(app, [*line.split(), "--bootstrap", bootstrap], input="")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: nobody listens at {bootstrap}\nStart a broker with `headrace start`")
    assert result.stdout == ""


@pytest.mark.parametrize("option", ["--bootstrap-server nowhere.invalid:1", "--bootstrap-server=nowhere.invalid:1"])
@pytest.mark.parametrize("command", ["topics list", "groups list", "consume t"])
def test_the_name_that_kafkas_tools_have_for_an_option_is_understood(command: str, option: str) -> None:
    result = runner.invoke(app, [*command.split(), *option.split()])
    assert result.exit_code == 1
    assert "there is no host 'nowhere.invalid'" in result.stderr


def test_a_host_that_does_not_exist_is_named() -> None:
    result = runner.invoke(app, ["topics", "list", "--bootstrap", "nowhere.invalid:9092"])
    assert result.exit_code == 1
    assert "there is no host 'nowhere.invalid'" in result.stderr


def test_the_environment_names_the_cluster() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    result = runner.invoke(app, ["topics", "list"], env={"HEADRACE_BOOTSTRAP": bootstrap})
    assert f"nobody listens at {bootstrap}" in result.stderr


def test_a_file_that_cannot_be_read_is_named_before_anything_is_sent() -> None:
    result = runner.invoke(app, ["produce", "t", "/does/not/exist", "--bootstrap", "nowhere.invalid:1"])
    assert result.exit_code == 1
    assert "cannot read '/does/not/exist': no such file or directory" in result.stderr


def test_a_help_page_loads_no_client_library() -> None:
    assert not _loaded_by("import headrace.cli.main", {"confluent_kafka", "kafka", "pyspark", "rich"})


def test_starting_a_broker_parses_its_options_without_the_command_line_libraries() -> None:
    code = "import headrace.__main__, headrace.cli.start_args as a; a.parse(['--set', 'a=1'])"
    assert not _loaded_by(code, {"typer", "rich", "argparse", "confluent_kafka", "headrace.cli.main"})


def test_a_broker_that_compacts_loads_nothing_of_what_its_cleaner_processes_work_with() -> None:
    assert not _loaded_by("import headrace.broker.node, headrace.storage.log_cleaner", {"numpy"})


def _loaded_by(code: str, modules: set[str]) -> set[str]:
    """Which of `modules` running `code` in a fresh process loads."""
    code += f"\nimport sys; print(*{modules!r} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(result.stdout.split())
