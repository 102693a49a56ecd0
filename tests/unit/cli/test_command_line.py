"""The command line without a cluster: help and usage errors."""

import shlex
from typing import Any

import typer.main
from typer.testing import CliRunner

from headrace import __version__
from headrace.cli import habits
from headrace.cli.main import app

runner = CliRunner()


def run(line: str) -> Any:
    return runner.invoke(app, shlex.split(line), env={"COLUMNS": "200"})


def test_the_version_is_printed() -> None:
    for option in ("--version", "-V"):
        result = run(option)
        assert (result.exit_code, result.output) == (0, f"headrace {__version__}\n")


def test_help_lists_the_commands_and_ends_with_examples_of_one() -> None:
    listed, described = run("--help"), run("topics create --help")
    assert (listed.exit_code, described.exit_code) == (0, 0)
    assert {name for name in ("start", "demo", "topics", "produce", "consume") if name not in listed.output} == set()
    assert "headrace topics create " in described.output.partition("Examples")[2]


USAGE_ERRORS = {
    "nonsense": "unknown command 'headrace nonsense'",
    "topics create": "TOPIC is missing",
    "topics create t --partitions 0": "--partitions '0': must be a whole number, at least 1",
    "topics create t --partitions x": "--partitions 'x': must be a whole number, at least 1",
    "topics create t --partitions 9999999999": "at most 100000",
    "topics create t -r 20000": "at most 10000",
    "topics create t --config": "--config needs a value",
    "topics list --json=1": "--json takes no value",
    "consume t --timeout x": "--timeout 'x': must be a number, at least 0.1",
    "consume t --from 1000000w": "'1000000w' is out of range",
    "produce t --timestamp 99999999999999999999": "is out of range",
    "produce t --timestamp 0": "is 0, which librdkafka would replace",
    "produce t --timeout 1e300": "at most 2147483",
    "produce t --acks 7": "--acks '7': must be one of 0, 1, all",
    "produce t --no-idempotant": "Did you mean --no-idempotent or --idempotent?",
    "consume t u": "unexpected argument: u",
    "topics create t --config retention.ms": "'retention.ms' is not KEY=VALUE",
    "topics alter t": "nothing to change",
    "topics delete t": "deleting needs confirmation",
    "produce t --key k --key-separator :": "cannot be combined",
    "produce t --jsonl --key k": "--jsonl cannot be combined with --key,",
    "produce t --keep-partitions": "needs --jsonl",
    "produce t --idempotent --acks 1": "needs --acks all",
    "produce t --compression rar": "rar",
    "consume t --from nowhere": "is not a valid position",
    "consume t --group g --partition 1": "--group and --partition cannot be combined",
    "consume t --jsonl --print-key": "--jsonl, --format and the --print-... options cannot be combined",
    "consume t --format {nothing}": "unknown field '{nothing}'",
    "pipeline submit": "submit needs --print",
    "start --listen here": "is not HOST:PORT",
    "topics list --bootstrap host:port": "is not HOST:PORT",
    "topics list --bootstrap h:" + "9" * 5000: "is not HOST:PORT",
    "reassign plan --retire " + "9" * 5000: "is not a broker id",
    "consume t --formt x": "Did you mean --format or --from?",
    "start --set x": "is not KEY=VALUE",
}


def test_a_usage_error_exits_with_2() -> None:
    foreign = ("Input should", "Value error", "Invalid value", "No such", "unable to parse")
    wrong = {}
    for line, message in USAGE_ERRORS.items():
        result = run(line)
        is_plain = len(result.output.splitlines()) <= 2 and not any(text in result.output for text in foreign)
        if result.exit_code != 2 or message not in result.output or not is_plain:
            wrong[line] = result.output
    assert wrong == {}


ADVICE = {
    "create-topic x": "Use `headrace topics create`.",
    "kafka-topics.sh --create --topic o --partitions 3": "Use `headrace topics create o --partitions 3`.",
    "kafka-topics --list --bootstrap-server h:1": "Use `headrace topics list --bootstrap h:1`.",
    "transactions --bootstrap-server h:1 list": "`headrace transactions list --bootstrap HOST:PORT`",
    "transactions list --duration-filter 60000": "`--longer-than 60000ms`",
    "kafka-reassign-partitions.sh --list": "Use `headrace reassign status`.",
    "kafka-reassign-partitions --execute --reassignment-json-file p.json": "Use `headrace reassign execute p.json`.",
    "reassign execute --plan p.json": "`headrace reassign execute p.json`",
    "elect --topic t": "`headrace elect t`",
    "brokers": "Use `headrace cluster`.",
    "kafka-consumer-groups.sh --describe --group g": "Use `headrace groups describe g`.",
    "pipeline show sessions": "Use `headrace pipeline describe JOB`.",
    "help topics": "Use `headrace topics --help`.",
    "version": "Use `headrace --version`.",
    "topics --describe": "Use `headrace topics describe TOPIC`.",
    "topics --delete --topic=a": "Use `headrace topics delete a`.",
    "groups reset g --to-offset 5": "Use `--to 5`.",
    "consume --topic t": "The topic is an argument: `headrace consume t`.",
    "consume t --from-beginning": "This is the default",
    "consume t --timeout-ms 5000": "`--timeout 5`",
    "produce --topic=t": "The topic is an argument: `headrace produce t`.",
    "start --port 9093": "Use `--listen 127.0.0.1:9093`.",
    "start -V": "`headrace --version` prints the version.",
    "start server.properties": "`--config server.properties`",
    "--bootstrap-server h:1 topics list": "Options come after the command",
    "stop": "send SIGTERM to its process",
    "shutdown": "Press Ctrl-C",
    "list-topics": "Use `headrace topics list`.",
    "group list": "Use `headrace groups`",
    "transactions describe --transactional-id t": "`headrace transactions describe t`",
    "transactions find-hanging --topic t": "`headrace transactions find-hanging t`",
    "kafka-transactions.sh list": "`headrace transactions`",
    "reassign --generate": "Use `headrace reassign plan`.",
    "reassign generate": "Use `headrace reassign plan`.",
    "reassign plan --disable-rack-aware": "Use `--ignore-racks`.",
    "kafka-leader-election.sh": "Use `headrace elect`.",
    "topics alter t --replication-factor 3": "`headrace reassign plan --topics TOPIC --replication-factor 3`",
    "topics describe --under-replicated-partitions": "`headrace cluster`",
    "kafka-console-consumer.sh --topic t": "Use `headrace consume TOPIC`.",
    "kafka-server-stop.sh": "Press Ctrl-C",
    "spark-submit x": "Use `headrace pipeline`: run, submit and more.",
    "pipeline ls": "Use `headrace pipeline list`.",
    "topics --list": "Use `headrace topics list`.",
    "topics ls": "Use `headrace topics list`.",
    "topics describe --topic t": "Name topics as arguments: `headrace topics describe t`.",
    "topics alter t --add-config a=b": "Use `--config a=b`.",
    "groups list --all": "This is the default.",
    "groups --reset-offsets --group g": "Use `headrace groups reset g`.",
    "groups describe --group g": "The group is an argument: `headrace groups describe g`.",
    "groups reset g --to-earliest": "Use `--to earliest`.",
    "consume --list": "Use `headrace topics list`.",
    "start --override a=b": "Use `--set a=b`.",
}


def test_names_from_kafkas_tools_lead_to_advice() -> None:
    wrong = {}
    for line, advice in ADVICE.items():
        result = runner.invoke(app, line.split())
        if result.exit_code != 2 or advice not in result.stderr or "Did you mean" in result.stderr:
            wrong[line] = result.output
    assert wrong == {}


def test_advice_covers_no_existing_option() -> None:
    every_command: Any = typer.main.get_command(app)
    for path, habit in habits._OPTIONS.items():
        command = every_command
        for word in path.split()[1:]:
            command = command.commands[word]
        known = {name for parameter in command.params for name in parameter.opts}
        assert known & habit.keys() == set(), path


def test_an_argument_that_is_empty_or_not_utf8_is_refused() -> None:
    problems = {
        "topics create a\udcff": r"TOPIC: 'a\xff' is not UTF-8",
        "groups describe \udcff": r"GROUP: '\xff' is not UTF-8",
        "produce a --header k\udcff=v": r"--header: 'k\xff=v' is not UTF-8",
        "topics list --bootstrap \udcff:9092": r"--bootstrap: '\xff:9092' is not UTF-8",
        "start --set log.retention.hours=3\udcff": r"--set: 'log.retention.hours=3\xff' is not UTF-8",
        "topics describe a ''": "TOPIC is empty",
        "topics alter '' --partitions 2": "TOPIC is empty",
        "produce ''": "TOPIC is empty",
        "consume ''": "TOPIC is empty",
        "consume a --group ''": "--group is empty",
        "groups delete-offsets '' a --yes": "GROUP is empty",
        "pipeline generate --topic ''": "--topic is empty",
    }
    results = {line: run(line) for line in problems}
    assert {line: (result.exit_code, result.output) for line, result in results.items()} == {
        line: (2, f"Error: {problem}\n") for line, problem in problems.items()
    }
