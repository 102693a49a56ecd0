"""Commands that lose their output or their broker end with an exit code and one line, without a traceback."""

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from subprocess import PIPE
from typing import IO

import pytest
from confluent_kafka.admin import NewTopic

from headrace.cli.cluster import Cluster
from tests.cli.conftest import Headrace
from tests.cli.processes import read_line, start, write_line
from tests.support.broker_process import BrokerProcess, answers_api_versions
from tests.support.ports import free_port
from tests.support.waiting import wait_for

FULL = Path("/dev/full")
needs_full_device = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full (Linux)")

PRINTING = [
    "--version",
    "topics --help",
    "topics describe {topic}",
    "groups list --json",
    "consume {topic} --until-end --jsonl",
    "produce {topic} --json",
    "verify {data} --json",
]
"""One command for each way of printing."""


def _run(
    environment: Mapping[str, str],
    *words: str,
    stdout: int | IO[str] | None = None,
    stderr: int | IO[str] = PIPE,
    input: str = "x\n",
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *words],
        input=input,
        stdout=stdout,
        stderr=stderr,
        text=True,
        env=dict(environment),
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def written(bootstrap: str, cluster: Cluster) -> Iterator[str]:
    """A topic with ten records."""
    name = f"cli-{uuid.uuid4().hex[:10]}"
    cluster.create(NewTopic(name, 2, 1))
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": bootstrap}
    _run(environment, "produce", name, input="a\n" * 10)
    yield name
    cluster.admin.delete_topics([name])[name].result()


@needs_full_device
@pytest.mark.parametrize("line", PRINTING)
def test_unwritable_output_is_reported_in_one_line(
    written: str, environment: Mapping[str, str], tmp_path: Path, line: str
) -> None:
    (tmp_path / "meta.properties").write_text("version=1\nbroker.id=0\ncluster.id=abc\n")
    words = line.format(topic=written, data=tmp_path).split()
    with FULL.open("w") as full:
        result = _run(environment, *words, stdout=full)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "Error: cannot write to standard output: no space left on device"
    assert len(result.stderr.splitlines()) <= 2


def test_a_closed_standard_output_is_reported(topic: str, environment: Mapping[str, str]) -> None:
    command = f'exec "{sys.executable}" -m headrace topics list >&-'
    result = subprocess.run(["bash", "-c", command], env=environment, stderr=PIPE, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "Error: cannot write to standard output: bad file descriptor\n"


@needs_full_device
def test_results_are_printed_if_standard_error_is_full(
    headrace: Headrace, topic: str, environment: Mapping[str, str]
) -> None:
    headrace("produce", topic, stdin="a\n")
    with FULL.open("w") as full:
        result = _run(environment, "consume", topic, "--until-end", stdout=PIPE, stderr=full)
    assert (result.returncode, result.stdout) == (0, "a\n")


def test_a_closed_pipe_does_not_fail_a_help_page(environment: Mapping[str, str]) -> None:
    command = f'set -o pipefail; "{sys.executable}" -m headrace consume --help | head -c 1'
    result = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.fixture
def own_broker(tmp_path: Path) -> BrokerProcess:
    return BrokerProcess(tmp_path / "data", settings={"group.initial.rebalance.delay.ms": 0})


def _environment(broker: BrokerProcess, environment: Mapping[str, str]) -> dict[str, str]:
    return {**environment, "HEADRACE_BOOTSTRAP": broker.bootstrap}


@pytest.mark.parametrize(
    ("how", "group"),
    [
        (BrokerProcess.sigkill, ("--group", "g")),
        pytest.param(BrokerProcess.pause, (), marks=pytest.mark.slow),
    ],
)
def test_a_consumer_fails_if_its_broker_disappears(
    own_broker: BrokerProcess,
    environment: Mapping[str, str],
    how: Callable[[BrokerProcess], None],
    group: tuple[str, ...],
) -> None:
    with own_broker:
        environment = _environment(own_broker, environment)
        _run(environment, "produce", "t", "--create")
        consumer = start(environment, "consume", "t", "--timeout", "3", *group)
        assert read_line(consumer) == "x\n"
        how(own_broker)
        _, err = consumer.communicate(timeout=60)
    assert consumer.returncode == 1
    lost = f"Error: lost the connection to {own_broker.bootstrap} while consuming from 't'"
    assert f"{lost}; there may be more records" in err


def test_a_consumer_survives_a_short_absence_of_its_broker(
    own_broker: BrokerProcess, environment: Mapping[str, str], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    with own_broker:
        environment = _environment(own_broker, environment)
        _run(environment, "produce", "t", "--create")
        with output.open("w") as stderr:
            consumer = start(environment, "consume", "t", "--timeout", "15", "-n", "2", stderr=stderr)
        assert read_line(consumer) == "x\n"
        own_broker.sigkill()
        wait_for(lambda: "trying to reconnect" in output.read_text(), "a line about the loss", timeout_s=14)
        own_broker.start()
        _run(environment, "produce", "t")
        assert read_line(consumer) == "x\n"
        consumer.communicate(timeout=60)
    assert consumer.returncode == 0
    assert "Error" not in output.read_text()


def _consumed(environment: Mapping[str, str]) -> list[str]:
    return _run(environment, "consume", "t", "--until-end", stdout=PIPE).stdout.split()


def test_a_producer_fails_if_its_broker_disappears(own_broker: BrokerProcess, environment: Mapping[str, str]) -> None:
    with own_broker:
        environment = _environment(own_broker, environment)
        _run(environment, "produce", "t", "--create")
        producer = start(environment, "produce", "t", "--timeout", "2")
        write_line(producer, "a")
        wait_for(lambda: _consumed(environment) == ["x", "a"], "the record")
        own_broker.sigkill()
        write_line(producer, "b")
        _, err = producer.communicate(timeout=60)
    assert producer.returncode == 1
    assert f"Error: producing to 't': no reply from {own_broker.bootstrap}; 1 record delivered before that" in err


def test_a_consumer_fails_if_its_topic_is_deleted(
    headrace: Headrace, topic: str, environment: Mapping[str, str]
) -> None:
    headrace("produce", topic, stdin="a\n")
    consumer = start(environment, "consume", topic, "--timeout", "3")
    assert read_line(consumer) == "a\n"
    headrace("topics", "delete", topic, "--yes")
    _, err = consumer.communicate(timeout=60)
    assert consumer.returncode == 1
    assert err.splitlines()[-1] == f"Error: topic '{topic}' was deleted while consuming from '{topic}'"


def test_a_producer_fails_if_its_topic_is_deleted(
    headrace: Headrace, topic: str, environment: Mapping[str, str]
) -> None:
    producer = start(environment, "produce", topic, "--timeout", "3", "-p", "0")
    write_line(producer, "a")
    wait_for(lambda: headrace("consume", topic, "--until-end").stdout == "a\n", "the record")
    headrace("topics", "delete", topic, "--yes")
    write_line(producer, "b")
    _, err = producer.communicate(timeout=60)
    assert producer.returncode == 1
    assert f"Error: topic '{topic}' was deleted while producing to it; 1 record delivered before that" in err


def test_an_offset_out_of_range_is_reported(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, "-p", "0", stdin="a\nb\n")
    result = headrace("consume", topic, "--from", "99999", "--until-end")
    assert result.stdout == ""
    assert result.stderr.splitlines()[0] == (
        f"Offset 99999 of {topic} is out of range: partition 0 has 0 to 1; "
        "partition 1 has no records, and its next offset is 0."
    )
    assert headrace("consume", topic, "--from", "99999", "--until-end", "--quiet").stderr == ""
    inside = headrace("consume", topic, "--from", "1", "--until-end", "--partition", "0")
    assert inside.stdout == "b\n"
    assert "out of range" not in inside.stderr


def test_deleting_an_unknown_setting_is_refused(headrace: Headrace, topic: str) -> None:
    headrace("topics", "alter", topic, "--config", "retention.ms=1000")
    refused = headrace("topics", "alter", topic, "--delete-config", "retention.msec", status=1)
    assert refused.stderr == (
        "Error: 'retention.msec' is not a topic setting\nDid you mean 'retention.ms'? Set on the topic: retention.ms.\n"
    )
    deleted = headrace("topics", "alter", topic, "--delete-config", "retention.ms")
    assert deleted.stderr == f"{topic}: retention.ms has its default again\n"
    again = headrace("topics", "alter", topic, "--delete-config", "retention.ms")
    assert again.stderr == f"{topic}: retention.ms was not set on the topic\n"


def test_an_unknown_log_level_is_refused_in_one_line(environment: Mapping[str, str], tmp_path: Path) -> None:
    result = _run({**environment, "HEADRACE_LOG_LEVEL": "foo"}, "start", "--data", str(tmp_path / "data"))
    assert result.returncode == 1
    assert result.stderr == (
        "headrace: Invalid value 'foo' for HEADRACE_LOG_LEVEL: must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL\n"
    )


@needs_full_device
def test_a_broker_runs_if_its_banner_cannot_be_written(environment: Mapping[str, str], tmp_path: Path) -> None:
    port = free_port()
    words = ["start", "--data", str(tmp_path / "data"), "--listen", f"127.0.0.1:{port}"]
    with FULL.open("w") as full:
        broker = start(environment, *words, stdout=full)
    try:
        wait_for(lambda: answers_api_versions("127.0.0.1", port), "an answer")
    finally:
        broker.terminate()
        _, err = broker.communicate(timeout=30)
    assert broker.returncode == 0
    assert "Cannot write to standard output: No space left on device" in err
    assert "Traceback" not in err
