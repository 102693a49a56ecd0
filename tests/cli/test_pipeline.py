"""`headrace pipeline list`, `describe` and `submit`, which need neither a broker nor Spark."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.pipeline.spec import registry
from tests.cli.terminal import shown

MY_JOBS = '''
from dataclasses import dataclass

from headrace.pipeline import Additive, Changelog, Expect, Interval, Stateful, Table, Topic, Append, job


@dataclass(frozen=True)
class Sessions:
    gap: Interval = Interval("30 minutes")
    humans_only: bool = False


@job(name="my_archive", source=Topic(), outputs=(Append(table="raw"),))
def my_archive(records, params):
    """All records, unchanged."""


@job(name="my_sessions", source=Table("events"), params=Sessions,
     expects=(Expect(condition="a > 0", reason="no a"),),
     outputs=(Stateful(table="my_sessions", keys=("client", "start")),
              Changelog(topic="my-sessions", of="my_sessions")))
def my_sessions(events, params):
    """Visits of clients."""


@job(name="my_views", source=Table("events"),
     outputs=(Additive(table="my_views", keys=("hour", "page"), sums=("views",), sketches=("visitors",)),))
def my_views(events, params):
    """Views of pages."""
'''
DEPLOYMENT = """
[cluster]
bootstrap = "broker:9092"
security.protocol = "SASL_SSL"
sasl.mechanism = "PLAIN"
sasl.username = "me"
sasl.password = { env = "KAFKA_PASSWORD" }
[place]
lake = "s3a://bucket/lake"
[spark]
master = "spark://host:7077"
executor.memory = "4g"
[jobs.my_archive]
topic = "access-log"
[jobs.my_sessions]
params.gap = "10 minutes"
"""
Pipeline = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with jobs and a deployment."""
    (tmp_path / "my_jobs.py").write_text(MY_JOBS)
    (tmp_path / "deployment.toml").write_text(DEPLOYMENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    return tmp_path


@pytest.fixture
def pipeline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A function that runs `headrace pipeline` with the jobs of the folder, and checks the exit code."""
    monkeypatch.setattr(registry, "entry_points", lambda group: [])
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(line: str, *, status: int = 0) -> str:
        result = CliRunner().invoke(app, ["pipeline", *shlex.split(line), "--from", "my_jobs.py"])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result.stdout if status == 0 else result.stderr

    return run


def test_jobs_are_listed_with_what_they_read_and_write(pipeline: Pipeline, folder: Path) -> None:
    assert pipeline("list --config deployment.toml").splitlines() == [
        "job\treads\ttables\ttopics\tfrom",
        f"my_archive\ttopic access-log\traw\t-\t{folder / 'my_jobs.py'}",
        f"my_sessions\ttable events\tmy_sessions\tmy-sessions\t{folder / 'my_jobs.py'}",
        f"my_views\ttable events\tmy_views\t-\t{folder / 'my_jobs.py'}",
    ]


def test_the_list_for_scripts_has_the_descriptions(pipeline: Pipeline) -> None:
    listed = json.loads(pipeline("list --json"))
    assert [each["description"] for each in listed] == [
        "All records, unchanged.",
        "Visits of clients.",
        "Views of pages.",
    ]
    assert listed[0]["source"] == {"topics": []}
    assert listed[1]["source"] == {"table": "events"}


def test_a_job_is_described_with_defaults_and_changes(pipeline: Pipeline) -> None:
    described = pipeline("describe my_sessions --set my_sessions.humans_only=yes --config deployment.toml")
    for line in (
        "reads\ttable events",
        "trigger\t1 second",
        "late rows\tcounted",
        "group\theadrace-my_sessions",
        "cluster\tbroker:9092",
        "lake\ts3a://bucket/lake",
        "checkpoints\ts3a://bucket/lake/_checkpoints",
        "spark\tspark://host:7077, server profile",
        "my_sessions\tstateful\tclient, start\t-",
        "gap\t10 minutes\t30 minutes\tan interval such as '10 minutes'",
        "humans_only\ttrue\tfalse\ttrue or false",
        "a > 0\tquarantine\tno a",
        "sasl.password\tenv KAFKA_PASSWORD",
        "spark.executor.memory\t4g\tdeployment",
        "spark.sql.adaptive.enabled\ttrue\tprofile",
    ):
        assert line in described.splitlines()


def test_without_a_deployment_a_job_runs_on_this_machine(pipeline: Pipeline, folder: Path) -> None:
    described = json.loads(pipeline("describe my_views --json"))
    assert described["cluster"] == {"bootstrap.servers": "127.0.0.1:9092"}
    assert described["lake"] == str(folder / "headrace-lake")
    assert described["spark"]["master"] == "local[*]"
    assert described["spark"]["profile"] == "laptop"
    assert described["config"] is None
    assert described["outputs"][0]["sketches"] == ["visitors"]


def test_pipeline_toml_in_the_working_directory_is_the_deployment(pipeline: Pipeline, folder: Path) -> None:
    (folder / "deployment.toml").rename(folder / "pipeline.toml")
    described = json.loads(pipeline("describe my_views --json --lake /data/lake --master 'local[2]' -b h:1"))
    assert described["config"] == str(folder / "pipeline.toml")
    assert described["cluster"]["bootstrap.servers"] == "h:1"
    assert described["checkpoints"] == "/data/lake/_checkpoints"
    assert described["spark"]["profile"] == "laptop"


def test_the_brokers_may_be_named_by_the_environment(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "env:1")
    assert "cluster\tenv:1\n" in pipeline("describe my_views")
    assert "cluster\tbroker:9092\n" in pipeline("describe my_views --config deployment.toml")


def test_the_submission_is_a_script(pipeline: Pipeline, folder: Path) -> None:
    script = pipeline("submit my_sessions --print --config deployment.toml --set my_sessions.gap='1 hour' --lake lake")
    words = shlex.split(script, comments=True)
    run = words[words.index("spark-submit") :]
    assert run[run.index("--master") + 1] == "spark://host:7077"
    assert "spark.executor.memory=4g" in run
    program = next(place for place, word in enumerate(run) if word.endswith("submitted.py"))
    assert run[program + 1 :] == [
        *("my_sessions", "--config", str(folder / "deployment.toml"), "--from", str(folder / "my_jobs.py")),
        *("--set", "my_sessions.gap=1 hour", "--lake", str(folder / "lake")),
    ]
    assert subprocess.run(["sh", "-n"], input=script, text=True, check=False).returncode == 0
    assert json.loads(pipeline("submit --print --json"))["command"][0] == "spark-submit"


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("describe my_sesions", 1, "there is no job 'my_sesions'. Did you mean 'my_sessions'?"),
        ("describe my_sessions --set my_sessions.gpa=1", 1, "there is no parameter 'gpa'. Did you mean 'gap'?"),
        ("describe my_sessions --master nowhere", 1, "'nowhere' is not a Spark master"),
        ("list --config none.toml", 1, "cannot read none.toml: no such file or directory"),
        ("list --from none.py", 1, "none.py: there is no such file"),
        ("submit", 2, "submit needs --print\nThe command only prints a script"),
        ("submit --print --deploy-mode here", 2, "--deploy-mode 'here': must be client or cluster"),
        ("submit --print my_sesions", 1, "there is no job 'my_sesions'"),
        ("compact views", 2, "there is no compactable table 'views'"),
        ("compact --before soon", 2, "'soon' is not a valid time"),
        ("audit my_view", 1, "there is no job 'my_view'. Did you mean 'my_views'?"),
    ],
)
def test_a_mistake_is_explained(pipeline: Pipeline, line: str, status: int, message: str) -> None:
    assert message in pipeline(line, status=status)


def test_a_description_fits_the_terminal_but_for_settings_of_spark(folder: Path) -> None:
    lines = shown(os.environ, "pipeline", "describe", "my_sessions", "--from", "my_jobs.py")
    tables = lines[: lines.index("Spark settings of the laptop profile")]
    assert max(len(line) for line in tables if not line.startswith(("From", "Lake", "Checkpoints"))) <= 80
    assert "Job              my_sessions" in tables
    [parameter] = [line.rstrip() for line in tables if line.startswith("gap")]
    assert parameter == "gap           30 minutes   30 minutes   an interval such as '10 minutes'"
    assert "  spark.driver.host=127.0.0.1" in lines


def test_brokers_that_do_not_answer_are_named(
    folder: Path, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka import KafkaError, KafkaException

    pytest.importorskip("pyspark")

    def run(*_: object, **__: object) -> bool:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    monkeypatch.setattr("headrace.pipeline.requirements.check", lambda: None)
    monkeypatch.setattr("headrace.pipeline.engine.run.run", run)
    assert "starting the jobs: no reply from broker:9092" in pipeline("run --config deployment.toml", status=1)


FROM = ("--from", "my_jobs.py")


@pytest.mark.parametrize(
    "words",
    [["list", *FROM], ["describe", "my_sessions", *FROM], ["submit", "--print", *FROM], ["status"]],
    ids=" ".join,
)
def test_showing_jobs_loads_neither_spark_nor_a_client(folder: Path, words: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "headrace", "pipeline", *words]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    loaded = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "headrace.pipeline.spec.deployment" in loaded
    assert not {"pyspark", "delta", "confluent_kafka", "kafka"} & loaded
