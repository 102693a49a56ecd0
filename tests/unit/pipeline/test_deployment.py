from dataclasses import replace
from pathlib import Path

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import deployment
from headrace.pipeline.spec.deployment import Deployment, JobSettings
from headrace.pipeline.spec.jobs import Table, Topic
from headrace.pipeline.spec.params import Interval
from headrace.pipeline.spec.secret_values import Secret
from tests.unit.pipeline.example_jobs import JOBS, SESSIONS, SessionParams

FULL = """
[cluster]
bootstrap = "broker:9092"
security.protocol = "SSL"

[place]
lake = "s3a://bucket/lake/"
checkpoints = "s3a://bucket/checkpoints"

[spark]
master = "spark://host:7077"
executor.memory = "4g"
"spark.executor.cores" = 2
hadoop.fs.s3a.secret.key = { env = "S3_SECRET" }

[jobs.archive]
topic = ["access-log", "orders"]
trigger = "10 seconds"
max_rows = 500_000

[jobs.sessions]
params.gap = "10 minutes"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.toml"
    path.write_text(FULL)
    return path


def test_a_file_gives_every_setting(path: Path) -> None:
    found = deployment.load(path)
    assert found.cluster.settings == {"bootstrap.servers": "broker:9092", "security.protocol": "SSL"}
    assert (found.lake, found.checkpoints) == ("s3a://bucket/lake", "s3a://bucket/checkpoints")
    assert found.spark.master == "spark://host:7077"
    assert found.spark.settings == {
        "spark.executor.memory": "4g",
        "spark.executor.cores": "2",
        "spark.hadoop.fs.s3a.secret.key": Secret("env", "S3_SECRET"),
    }
    assert found.settings("archive") == JobSettings(topic="access-log,orders", trigger="10 seconds", max_rows=500_000)
    assert found.params(SESSIONS) == SessionParams(gap=Interval("10 minutes"))
    assert found.settings("page_views") == JobSettings()


def test_a_batch_of_a_table_may_be_larger_than_one_of_a_topic() -> None:
    of_topic = replace(SESSIONS, source=Topic())
    of_table = replace(SESSIONS, source=Table("events"))
    assert JobSettings().rows_of(of_topic) < JobSettings().rows_of(of_table)
    assert JobSettings(max_rows=7).rows_of(of_table) == 7


def test_a_laptop_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = Deployment.default()
    assert found.cluster.bootstrap == "127.0.0.1:9092"
    assert found.lake == str(tmp_path / "headrace-lake")
    assert found.checkpoints == str(tmp_path / "headrace-lake" / "_checkpoints")
    assert found.spark.master is None


def test_an_empty_file_gives_the_defaults_beside_it(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").write_text("")
    found = deployment.load(tmp_path / "empty.toml", "other:9092")
    assert found.lake == str(tmp_path / "headrace-lake")
    assert found.cluster.bootstrap == "other:9092"


def test_places_are_absolute() -> None:
    places = {
        "lake": "/etc/lake",
        "../lake": "/lake",
        "/data/lake/": "/data/lake",
        "s3a://bucket/lake/": "s3a://bucket/lake",
        "hdfs://name:8020/lake": "hdfs://name:8020/lake",
        "file:///data/lake": "file:///data/lake",
    }
    assert {place: deployment.absolute(place, Path("/etc")) for place in places} == places


def test_another_lake_has_its_own_checkpoints(path: Path) -> None:
    found = deployment.load(path).with_lake("/data/other")
    assert (found.lake, found.checkpoints) == ("/data/other", "/data/other/_checkpoints")
    with pytest.raises(PipelineError, match="--lake is empty"):
        found.with_lake("")


def test_options_of_a_command_replace_those_of_the_file(path: Path) -> None:
    found = deployment.load(path)
    found = found.with_bootstrap("h:1").with_master("local[2]").with_overrides(JOBS, ["sessions.minimum=3"])
    assert found.cluster.settings == {"bootstrap.servers": "h:1", "security.protocol": "SSL"}
    assert found.spark.master == "local[2]"
    assert found.params(SESSIONS) == SessionParams(gap=Interval("10 minutes"), minimum=3)
    with pytest.raises(PipelineError, match="'sparc' is not a Spark master"):
        found.with_master("sparc")


def refusal(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(PipelineError) as refused:
        deployment.load(path)
    return message_after(path, refused.value)


def message_after(path: Path, error: PipelineError) -> str:
    assert str(error).startswith(str(path))
    return str(error).removeprefix(str(path))


def test_errors_in_a_file_are_named(path: Path) -> None:
    assert "there is no table 'clusters'. Did you mean 'cluster'?" in refusal(path, "[clusters]")
    assert "jobs must be a table: [jobs]" in refusal(path, "jobs = 5")
    assert "[place] there is no key 'laek'. Did you mean 'lake'?" in refusal(path, '[place]\nlaek = "x"')
    assert "[place] lake must be non-empty text, not 5" in refusal(path, "[place]\nlake = 5")
    assert '[cluster] bootstrap is missing: write bootstrap = "HOST:PORT"' in refusal(
        path, '[cluster]\nclient.id = "x"'
    )
    assert "is not TOML" in refusal(path, "[cluster")
    assert "is not TOML" in refusal(path, f"a = {'[' * 10_000}")


def test_wrong_settings_of_spark_are_named(path: Path) -> None:
    assert "'sparc' is not a Spark master" in refusal(path, '[spark]\nmaster = "sparc"')
    assert "[spark] master must be a string" in refusal(path, '[spark]\nmaster = { env = "M" }')
    assert "spark.sql.session.timeZone cannot be changed: results or secrets depend on it" in refusal(
        path, '[spark]\nsql.session.timeZone = "CET"'
    )
    assert "hadoop.fs.s3a.secret.key is a secret in plain text" in refusal(
        path, '[spark]\nhadoop.fs.s3a.secret.key = "hunter2"'
    )


def test_wrong_settings_of_a_job_are_named(path: Path) -> None:
    assert "[jobs.a] must be a table" in refusal(path, "[jobs]\na = 5")
    assert "[jobs.a] there is no key 'gap'" in refusal(path, "[jobs.a]\ngap = 5")
    assert "params must be a table: params.NAME = VALUE" in refusal(path, "[jobs.a]\nparams = 5")
    assert "an interval such as '10 seconds', not 'soon'" in refusal(path, '[jobs.a]\ntrigger = "soon"')
    assert "max_rows must be a whole number, at least 1, not 0" in refusal(path, "[jobs.a]\nmax_rows = 0")
    assert "max_rows must be a whole number" in refusal(path, "[jobs.a]\nmax_rows = true")
    assert "topic must be the name of a topic or a list" in refusal(path, "[jobs.a]\ntopic = 5")
    assert "topic must be the name of a topic or a list" in refusal(path, "[jobs.a]\ntopic = []")
    assert "'a b' cannot be a topic's name" in refusal(path, '[jobs.a]\ntopic = "a b"')


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"cannot read .*none\.toml: no such file"):
        deployment.load(tmp_path / "none.toml")


def test_jobs_and_parameters_of_a_file_must_exist(path: Path) -> None:
    def refusal(text: str) -> str:
        path.write_text(text)
        found = deployment.load(path)
        with pytest.raises(PipelineError) as refused:
            found.check(JOBS, path)
        return message_after(path, refused.value)

    deployment.load(path).check(JOBS, path)
    assert "[jobs.sesions]: there is no job 'sesions'. Did you mean 'sessions'?" in refusal("[jobs.sesions]")
    assert "there is no parameter 'gpa'. Did you mean 'gap'?" in refusal("[jobs.sessions]\nparams.gpa = 1")
    assert "parameter gap must be an interval" in refusal("[jobs.sessions]\nparams.gap = 1")
