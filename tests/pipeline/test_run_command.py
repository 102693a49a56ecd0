"""`headrace pipeline run` as a process, and what `status` and `query` show of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

JOBS = '''
from headrace.pipeline import Additive, Changelog, Topic, job


@job(name="my_words", source=Topic(),
     outputs=(Additive(table="my_words", keys=("word",), sums=("times",)), Changelog(topic="my-words", of="my_words")))
def my_words(records, params):
    """Count words."""
    from pyspark.sql import functions as sf

    return records.groupBy(sf.col("value").cast("string").alias("word")).agg(sf.count("*").alias("times"))
'''


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "headrace", "pipeline", *words]


def printed(*words: str) -> Any:
    result = subprocess.run(command(*words, "--json"), capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def directory(broker: BrokerProcess, tmp_path: Path) -> Path:
    """A deployment and a job, whose topic has 300 records."""
    (tmp_path / "my_jobs.py").write_text(JOBS)
    (tmp_path / "pipeline.toml").write_text(
        f'[cluster]\nbootstrap = "{broker.bootstrap}"\n[place]\nlake = "lake"\n[jobs.my_words]\ntopic = "words"\n'
    )
    Topics(broker.bootstrap).create("words", partitions=2, config={})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(300):
        producer.produce("words", f"word {number % 3}".encode())
    assert producer.flush(30) == 0
    return tmp_path


def _java_of(process: subprocess.Popen[bytes]) -> int:
    """Return the id of the Java process that a driver has started."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    [found] = [int(pid) for pid, parent, name, *_ in rows if int(parent) == process.pid and name == "java"]
    return found


def test_a_run_without_its_java_process_ends_with_a_message(directory: Path) -> None:
    log = directory / "run.log"
    options = ["--config", str(directory / "pipeline.toml"), "--from", str(directory / "my_jobs.py")]
    with log.open("wb") as stderr, subprocess.Popen(command("run", "my_words", *options), stderr=stderr) as run:
        try:
            wait_for(lambda: b"Running my_words" in log.read_bytes(), "the start", timeout_s=600)
            os.kill(_java_of(run), signal.SIGKILL)
            assert run.wait(60) == 1
        finally:
            run.kill()
    assert "Error: Spark's Java process has ended" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_sigterm_ends_a_run_after_its_batch_with_status_and_tables_complete(directory: Path) -> None:
    options = ["--config", str(directory / "pipeline.toml")]
    jobs = ["--from", str(directory / "my_jobs.py")]
    log = directory / "run.log"
    with log.open("wb") as stderr, subprocess.Popen(command("run", "my_words", *options, *jobs), stderr=stderr) as run:
        try:
            status_file = directory / "lake" / "_checkpoints" / "status" / "my_words.json"

            def batch() -> bool:
                assert run.poll() is None, log.read_text()
                return status_file.exists() and json.loads(status_file.read_text())["batch"] is not None

            wait_for(batch, "the first batch", timeout_s=600)
            run.send_signal(signal.SIGTERM)
            assert run.wait(120) == 0, log.read_text()
        finally:
            run.kill()

    [status] = printed("status", *options)
    assert (status["job"], status["state"], status["lag"]) == ("my_words", "stopped", 0)
    rows = printed("query", "SELECT word, times FROM my_words ORDER BY word", *options, *jobs)
    assert rows == [{"word": f"word {number}", "times": 100} for number in range(3)]
