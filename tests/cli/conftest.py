"""Commands against a broker; most run in this process, and those with pipes and signals in their own."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import NewTopic
from typer.testing import CliRunner

from headrace.cli.cluster import Cluster
from headrace.cli.main import app
from headrace.testing import Broker


@dataclass(frozen=True)
class Result:
    stdout: str
    stderr: str


Headrace = Callable[..., Result]


@pytest.fixture(scope="session")
def cli_broker() -> Iterator[Broker]:
    settings = {
        "headrace.http.listener": "127.0.0.1:0",
        "headrace.group.history.interval.ms": "100",
        "transaction.partition.verification.enable": "false",
    }
    with Broker(settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The broker of this run, or the one in HEADRACE_TEST_BOOTSTRAP, for comparison with Kafka."""
    named = os.environ.get("HEADRACE_TEST_BOOTSTRAP")
    if named:
        return named
    broker: Broker = request.getfixturevalue("cli_broker")
    return broker.bootstrap


@pytest.fixture(scope="session")
def cluster(bootstrap: str) -> Cluster:
    return Cluster(bootstrap)


@pytest.fixture
def environment(bootstrap: str) -> Mapping[str, str]:
    return {**os.environ, "HEADRACE_BOOTSTRAP": bootstrap}


@pytest.fixture
def headrace(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> Headrace:
    """A function that runs `headrace` and checks its exit status."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", bootstrap)

    def run(*words: str, stdin: str = "", status: int = 0) -> Result:
        result = CliRunner().invoke(app, words, input=stdin, prog_name="headrace")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, f"{words}: {result.stdout}{result.stderr}"
        return Result(result.stdout, result.stderr)

    return run


@pytest.fixture
def new_name(cluster: Cluster) -> Iterator[Callable[[], str]]:
    """A function that makes up names of topics, which are deleted at the end."""
    names: list[str] = []

    def name() -> str:
        names.append(f"cli-{uuid.uuid4().hex[:10]}")
        return names[-1]

    yield name
    existing = [name for name in names if cluster.exists(name)]
    if existing:
        for future in cluster.admin.delete_topics(existing).values():
            future.result()


@pytest.fixture
def topic(cluster: Cluster, new_name: Callable[[], str]) -> str:
    name = new_name()
    cluster.create(NewTopic(name, 2, 1))
    return name
