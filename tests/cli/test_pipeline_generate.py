"""`headrace pipeline generate` to a topic."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from confluent_kafka.admin import NewTopic
from typer.testing import CliRunner, Result

from headrace.cli import pipeline_generate
from headrace.cli.cluster import Cluster
from headrace.cli.help_pages import Command
from headrace.cli.main import Commands
from headrace.pipeline.generate.log import log
from headrace.pipeline.generate.parameters import Parameters
from headrace.pipeline.generate.truth import Truth
from tests.support.topics import read_records

app = typer.Typer(cls=Commands)
app.callback()(lambda: None)
app.command("generate", cls=Command)(pipeline_generate.generate)

Run = Callable[..., Result]


@pytest.fixture
def run(bootstrap: str) -> Run:
    def generate(*words: str) -> Result:
        return CliRunner().invoke(app, ["generate", "--bootstrap", bootstrap, *words], prog_name="headrace pipeline")

    return generate


def contents(bootstrap: str, topic: str, partitions: int) -> list[list[tuple[bytes, bytes]]]:
    """Return keys and values by partition."""
    found: list[list[tuple[bytes, bytes]]] = [[] for _ in range(partitions)]
    for message in read_records(bootstrap, topic):
        found[message.partition() or 0].append((bytes(message.key() or b""), bytes(message.value() or b"")))
    return found


def test_the_lines_are_in_the_partitions_of_their_clients(
    run: Run, bootstrap: str, new_name: Callable[[], str], tmp_path: Path
) -> None:
    topic = new_name()
    mishaps = ("--late", "0.1", "--torn", "0.1", "--duplicates", "0.1")
    words = ("--topic", topic, "--partitions", "3", "--lines", "600", "--start", "@0", *mishaps)
    result = run(*words, "--output", str(tmp_path / "truth"))
    assert result.exit_code == 0, result.stderr
    records = log(
        Parameters(lines=600, start=0, late=0.1, torn=0.1, duplicates=0.1, partitions=3), Truth(3, lambda *_: None)
    )
    expected: list[list[tuple[bytes, bytes]]] = [[] for _ in range(3)]
    for partition, key, line in records:
        expected[partition].append((key, line))
    assert contents(bootstrap, topic, 3) == expected
    told = (tmp_path / "truth/truth/partitions.jsonl").read_text().splitlines()
    assert [json.loads(row)["lines"] for row in told] == [len(rows) for rows in expected]


def test_a_topic_keeps_its_partitions(run: Run, cluster: Cluster, new_name: Callable[[], str]) -> None:
    topic = new_name()
    run("--topic", topic, "--partitions", "2", "--lines", "1")
    result = run("--topic", topic, "--lines", "1", "--json")
    assert json.loads(result.stdout)["parameters"]["partitions"] == 2
    assert cluster.partitions(topic) == [0, 1]
    result = run("--topic", topic, "--partitions", "3", "--lines", "1")
    assert (result.exit_code, f"topic '{topic}' has 2 partitions, not 3" in result.stderr) == (1, True)


def test_a_log_sent_at_a_rate_begins_now(run: Run, new_name: Callable[[], str]) -> None:
    before = int(time.time())
    result = run("--topic", new_name(), "--rate", "100", "--lines", "1", "--json")
    assert before <= json.loads(result.stdout)["parameters"]["start"] <= time.time()


def test_lines_are_sent_at_the_rate(run: Run, new_name: Callable[[], str]) -> None:
    began = time.monotonic()
    result = run("--topic", new_name(), "--rate", "50", "--lines", "31")
    assert result.exit_code == 0, result.stderr
    assert time.monotonic() - began >= 30 / 50


def test_a_refused_record_ends_the_command(run: Run, cluster: Cluster, new_name: Callable[[], str]) -> None:
    topic = new_name()
    cluster.create(NewTopic(topic, num_partitions=1, config={"max.message.bytes": "50"}))
    result = run("--topic", topic, "--lines", "100")
    assert (result.exit_code, f"cannot deliver a record to topic {topic}" in result.stderr) == (1, True)


def test_an_unreachable_broker_is_reported() -> None:
    words = ["generate", "--topic", "t", "--lines", "1", "--bootstrap", "127.0.0.1:1"]
    result = CliRunner().invoke(app, words, prog_name="headrace pipeline")
    assert (result.exit_code, "nothing is listening on 127.0.0.1:1" in result.stderr) == (1, True)
