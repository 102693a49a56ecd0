"""The settings of a Spark session, and which source of a setting wins."""

import signal
from pathlib import Path

import pytest

from headrace.pipeline import jars
from headrace.pipeline.engine import session
from headrace.pipeline.engine.session import settings
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.deployment import Deployment, parse

HERE: dict[str, str] = {}
SUBMITTED = {"PYSPARK_GATEWAY_PORT": "40000"}


def deployment(**spark: object) -> Deployment:
    return parse({"place": {"lake": "s3a://bucket/lake"}, "spark": spark}, Path("/srv"))


def test_the_command_lines_master_beats_that_of_the_deployment_and_the_default() -> None:
    assert settings(deployment(master="yarn"), master="local[3]", environ=HERE)["spark.master"] == "local[3]"
    assert settings(deployment(master="yarn"), environ=HERE)["spark.master"] == "yarn"
    assert settings(deployment(), environ=HERE)["spark.master"] == "local[*]"


def test_the_master_decides_on_the_profile() -> None:
    adaptive = {"local[2]": "false", "spark://host:7077": "true"}
    given = {master: settings(deployment(), master=master, environ=HERE) for master in adaptive}
    assert {master: found["spark.sql.adaptive.enabled"] for master, found in given.items()} == adaptive


def test_under_spark_submit_only_settings_of_results_and_secrets_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_KEY", "hunter2")
    spark = {"driver.memory": "3g", "sql.ansi.enabled": False, "hadoop.fs.s3a.secret.key": {"env": "S3_KEY"}}
    given = settings(deployment(master="yarn", **spark), environ=SUBMITTED)
    assert not given.keys() & {"spark.master", "spark.driver.memory", "spark.driver.host", "spark.jars"}
    assert (given["spark.sql.session.timeZone"], given["spark.sql.ansi.enabled"]) == ("UTC", "false")
    assert given["spark.hadoop.fs.s3a.secret.key"] == "hunter2"


def test_a_master_under_spark_submit_is_refused() -> None:
    with pytest.raises(PipelineError, match="pass --master yarn to spark-submit"):
        settings(deployment(), master="yarn", environ=SUBMITTED)


def test_jars_of_the_user_are_added_to_the_connectors(tmp_path: Path) -> None:
    (tmp_path / "kafka.jar").touch()
    environ = {"HEADRACE_SPARK_JARS": str(tmp_path)}
    given = settings(deployment(jars="/opt/aws.jar"), master="spark://host:7077", environ=environ)
    assert given["spark.jars"] == f"{tmp_path}/kafka.jar,/opt/aws.jar"


def test_a_driver_alone_has_the_connectors_jars_on_its_class_path_whose_classes_java_archives(tmp_path: Path) -> None:
    (tmp_path / "kafka.jar").touch()
    chosen = deployment(jars="/opt/aws.jar", **{"driver.extraClassPath": "/opt/own.jar"})
    given = settings(chosen, environ={"HEADRACE_SPARK_JARS": str(tmp_path)})
    assert given["spark.driver.extraClassPath"] == f"{tmp_path}/kafka.jar:/opt/own.jar"
    assert given["spark.jars"] == "/opt/aws.jar"


def test_java_starts_with_the_archived_classes_if_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "_project_jars", lambda: tmp_path / "spark")
    name, archive = "spark.driver.extraJavaOptions", tmp_path / "spark.jsa"
    without = settings(deployment(), environ=HERE)[name]
    archive.touch()
    assert settings(deployment(), environ=HERE)[name] == f"{without} -XX:SharedArchiveFile={archive} -Xlog:cds=off"


def test_java_does_not_optimize_for_few_rows() -> None:
    name = "spark.driver.extraJavaOptions"
    many = settings(deployment(), environ=HERE)[name]
    assert settings(deployment(), few_rows=True, environ=HERE)[name] == f"{many} -XX:TieredStopAtLevel=1"


def test_java_options_of_the_deployment_replace_all_others() -> None:
    given = settings(deployment(**{"driver.extraJavaOptions": "-Xss4m"}), environ=HERE)
    assert given["spark.driver.extraJavaOptions"] == "-Xss4m"


def test_the_environment_overrides_everything() -> None:
    given = settings(deployment(), environ={"HEADRACE_SPARK_CONF": "spark.driver.memory=2g; spark.ui.enabled=true"})
    assert (given["spark.driver.memory"], given["spark.ui.enabled"]) == ("2g", "true")


def test_printing_the_settings_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_KEY", "hunter2")
    given = settings(deployment(**{"hadoop.fs.s3a.secret.key": {"env": "S3_KEY"}}), environ=HERE)
    assert given["spark.hadoop.fs.s3a.secret.key"] == "hunter2"
    assert "hunter2" not in repr(given)


def test_a_master_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    def start(_: object) -> SparkSession:
        raise PySparkRuntimeError("stopped\nat org.apache.spark")

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    before = signal.getsignal(signal.SIGINT), signal.signal
    with pytest.raises(PipelineError, match=r"Spark did not start on spark://h:1: stopped \(see Spark's messages\)$"):
        session.build(Deployment.default(), master="spark://h:1")
    assert (signal.getsignal(signal.SIGINT), signal.signal) == before


def test_java_ignores_the_signals_that_stop_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {number: signal.getsignal(number) for number in session.STOP_SIGNALS}
    try:
        with session._signals_only_here():
            signal.signal(signal.SIGINT, lambda *_: None)
            assert signal.getsignal(signal.SIGINT) == before[signal.SIGINT]
            # PySpark calls this in the process that becomes Java.
            monkeypatch.setattr("os.getpid", lambda: -1)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        assert {signal.getsignal(number) for number in before} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
