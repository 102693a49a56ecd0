"""The command line without a cluster: help and usage errors."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli import habits
from headrace.cli.main import app

runner = CliRunner()
get_command = cache(typer.main.get_command)


@pytest.fixture(scope="module", autouse=True)
def app_is_built_once() -> Iterator[None]:
    """Typer inspects all functions in every call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.testing._get_command", get_command)
        yield


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_printed(option: str) -> None:
    result = runner.invoke(app, [option])
    assert (result.exit_code, result.output) == (0, f"headrace {__version__}\n")


def test_help_lists_the_commands() -> None:
    result = runner.invoke(app, ["--help"])
    assert result.exit_code == 0
    for name in ("start", "demo", "topics", "produce", "consume"):
        assert name in result.output


def test_every_command_has_examples_of_itself() -> None:
    def commands(command: Any, path: str) -> Iterator[tuple[str, str]]:
        for name, child in getattr(command, "commands", {}).items():
            yield from commands(child, f"{path} {name}")
        if not hasattr(command, "commands"):
            yield path, command.epilog or ""

    found = dict(commands(get_command(app), "headrace"))
    assert len(found) > 40
    assert [
        path for path, epilog in found.items() if not epilog.startswith("[bold]Examples[/]") or path not in epilog
    ] == []


@pytest.mark.parametrize("command", ["start", "demo", "topics create", "pipeline report"])
def test_the_help_of_a_command_ends_with_examples(command: str) -> None:
    result = runner.invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"headrace {command} " in result.output.partition("Examples")[2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "unknown command 'headrace nonsense'"),
        ("topics create", "TOPIC is missing"),
        ("topics create t --partitions 0", "--partitions '0': must be a whole number, at least 1"),
        ("topics create t --partitions x", "--partitions 'x': must be a whole number, at least 1"),
        ("topics create t --partitions 9999999999", "at most 100000"),
        ("topics create t -r 20000", "at most 10000"),
        ("topics create t --config", "--config needs a value"),
        ("topics list --json=1", "--json takes no value"),
        ("consume t --timeout x", "--timeout 'x': must be a number, at least 0.1"),
        ("consume t --from 1000000w", "'1000000w' is out of range"),
        ("consume t --from @99999999999999999999", "is out of range"),
        ("produce t --timestamp 99999999999999999999", "is out of range"),
        ("produce t --timestamp 0", "is 0, which librdkafka would replace"),
        ("produce t --timeout 1e300", "at most 2147483"),
        ("produce t --acks 7", "--acks '7': must be one of 0, 1, all"),
        ("produce t --no-idempotant", "Did you mean --no-idempotent or --idempotent?"),
        ("consume t --formt x", "Did you mean --format or --from?"),
        ("consume t u", "unexpected argument: u"),
        ("topics create t --config retention.ms", "'retention.ms' is not KEY=VALUE"),
        ("topics alter t", "nothing to change"),
        ("topics delete t", "deleting needs confirmation"),
        ("produce t --key k --key-separator :", "cannot be combined"),
        ("produce t --jsonl --key k", "--jsonl cannot be combined with --key,"),
        ("produce t --keep-partitions", "needs --jsonl"),
        ("produce t --idempotent --acks 1", "needs --acks all"),
        ("produce t --compression rar", "rar"),
        ("consume t --from nowhere", "is not a valid position"),
        (f"consume t --from {'9' * 5000}", "is not a valid position"),
        ("consume t --group g --partition 1", "--group and --partition cannot be combined"),
        ("consume t --jsonl --print-key", "--jsonl, --format and the --print-... options cannot be combined"),
        ("consume t --format {nothing}", "unknown field '{nothing}'"),
        ("pipeline submit", "submit needs --print"),
        ("start --listen here", "is not HOST:PORT"),
        ("start --set x", "is not KEY=VALUE"),
        ("topics list --bootstrap host:port", "is not HOST:PORT"),
        pytest.param("topics list --bootstrap h:" + "9" * 5000, "is not HOST:PORT", id="a long port"),
        pytest.param("reassign plan --retire " + "9" * 5000, "is not a broker id", id="a long broker id"),
    ],
)
def test_a_usage_error_exits_with_2(line: str, message: str) -> None:
    result = runner.invoke(app, line.split(), env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) <= 2
    for foreign in ("Input should", "Value error", "Invalid value", "No such", "unable to parse"):
        assert foreign not in result.output


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("stop", "send SIGTERM to its process"),
        ("shutdown", "Press Ctrl-C"),
        ("create-topic x", "Use `headrace topics create`."),
        ("list-topics", "Use `headrace topics list`."),
        ("group list", "Use `headrace groups`"),
        ("kafka-topics.sh --create --topic o --partitions 3", "Use `headrace topics create o --partitions 3`."),
        ("kafka-topics --list --bootstrap-server h:1", "Use `headrace topics list --bootstrap h:1`."),
        ("transactions --bootstrap-server h:1 list", "`headrace transactions list --bootstrap HOST:PORT`"),
        ("transactions list --duration-filter 60000", "`--longer-than 60000ms`"),
        ("transactions describe --transactional-id t", "`headrace transactions describe t`"),
        ("transactions find-hanging --topic t", "`headrace transactions find-hanging t`"),
        ("kafka-transactions.sh list", "`headrace transactions`"),
        ("kafka-reassign-partitions.sh --list", "Use `headrace reassign status`."),
        (
            "kafka-reassign-partitions --execute --reassignment-json-file p.json",
            "Use `headrace reassign execute p.json`.",
        ),
        ("reassign --generate", "Use `headrace reassign plan`."),
        ("reassign generate", "Use `headrace reassign plan`."),
        ("reassign execute --plan p.json", "`headrace reassign execute p.json`"),
        ("reassign plan --disable-rack-aware", "Use `--ignore-racks`."),
        ("kafka-leader-election.sh", "Use `headrace elect`."),
        ("elect --topic t", "`headrace elect t`"),
        ("brokers", "Use `headrace cluster`."),
        ("topics alter t --replication-factor 3", "`headrace reassign plan --topics TOPIC --replication-factor 3`"),
        ("topics describe --under-replicated-partitions", "`headrace cluster`"),
        ("kafka-consumer-groups.sh --describe --group g", "Use `headrace groups describe g`."),
        ("kafka-console-consumer.sh --topic t", "Use `headrace consume TOPIC`."),
        ("kafka-server-stop.sh", "Press Ctrl-C"),
        ("spark-submit x", "Use `headrace pipeline`: run, submit and more."),
        ("pipeline ls", "Use `headrace pipeline list`."),
        ("pipeline show sessions", "Use `headrace pipeline describe JOB`."),
        ("help topics", "Use `headrace topics --help`."),
        ("version", "Use `headrace --version`."),
        ("topics --list", "Use `headrace topics list`."),
        ("topics --describe", "Use `headrace topics describe TOPIC`."),
        ("topics --delete --topic=a", "Use `headrace topics delete a`."),
        ("topics ls", "Use `headrace topics list`."),
        ("topics describe --topic t", "Name topics as arguments: `headrace topics describe t`."),
        ("topics alter t --add-config a=b", "Use `--config a=b`."),
        ("groups list --all", "This is the default."),
        ("groups --reset-offsets --group g", "Use `headrace groups reset g`."),
        ("groups describe --group g", "The group is an argument: `headrace groups describe g`."),
        ("groups reset g --to-earliest", "Use `--to earliest`."),
        ("groups reset g --to-offset 5", "Use `--to 5`."),
        ("consume --topic t", "The topic is an argument: `headrace consume t`."),
        ("consume t --from-beginning", "This is the default"),
        ("consume t --timeout-ms 5000", "`--timeout 5`"),
        ("consume --list", "Use `headrace topics list`."),
        ("produce --topic=t", "The topic is an argument: `headrace produce t`."),
        ("start --port 9093", "Use `--listen 127.0.0.1:9093`."),
        ("start --override a=b", "Use `--set a=b`."),
        ("start -V", "`headrace --version` prints the version."),
        ("start server.properties", "`--config server.properties`"),
        ("--bootstrap-server h:1 topics list", "Options come after the command"),
    ],
)
def test_names_from_kafkas_tools_lead_to_advice(line: str, advice: str) -> None:
    result = runner.invoke(app, line.split())
    assert result.exit_code == 2
    assert advice in result.stderr
    assert "Did you mean" not in result.stderr


def test_advice_covers_no_existing_option() -> None:
    every_command: Any = get_command(app)
    for path, habit in habits._OPTIONS.items():
        command = every_command
        for word in path.split()[1:]:
            command = command.commands[word]
        known = {name for parameter in command.params for name in parameter.opts}
        assert known & habit.keys() == set(), path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["topics", "create", "a\udcff"], r"TOPIC: 'a\xff' is not UTF-8"),
        (["consume", "\udcff"], r"TOPIC: '\xff' is not UTF-8"),
        (["groups", "describe", "\udcff"], r"GROUP: '\xff' is not UTF-8"),
        (["produce", "a", "--header", "k\udcff=v"], r"--header: 'k\xff=v' is not UTF-8"),
        (["produce", "a", "--key", "\udcff"], r"--key: '\xff' is not UTF-8"),
        (["topics", "list", "--bootstrap", "\udcff:9092"], r"--bootstrap: '\xff:9092' is not UTF-8"),
        (["start", "--set", "log.retention.hours=3\udcff"], r"--set: 'log.retention.hours=3\xff' is not UTF-8"),
    ],
)
def test_an_argument_that_is_not_utf8_is_refused(words: list[str], message: str) -> None:
    result = runner.invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["topics", "describe", "a", ""], "TOPIC"),
        (["topics", "alter", "", "--partitions", "2"], "TOPIC"),
        (["produce", ""], "TOPIC"),
        (["consume", ""], "TOPIC"),
        (["consume", "a", "--group", ""], "--group"),
        (["groups", "delete-offsets", "", "a", "--yes"], "GROUP"),
        (["pipeline", "generate", "--topic", ""], "--topic"),
    ],
)
def test_an_empty_name_is_refused(words: list[str], name: str) -> None:
    result = runner.invoke(app, words, env={"COLUMNS": "200"})
    assert (result.exit_code, result.output) == (2, f"Error: {name} is empty\n")
