from pathlib import Path
from typing import Any

import pytest

from headrace.pipeline import jars
from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.deployment import Deployment, Spark
from headrace.pipeline.spec.secret_values import Secret
from headrace.pipeline.submission import Submission, submission

SERVER = "spark://host:7077"


@pytest.fixture(autouse=True)
def no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "spark_settings", lambda: {"spark.jars.packages": "g:a:1"})


def submitted(master: str = SERVER, lake: str = "s3a://bucket/lake", **given: Any) -> Submission:
    settings = given.pop("settings", {})
    deployment = Deployment(
        cluster=Deployment.default().cluster,
        lake=lake,
        checkpoints=f"{lake}/_checkpoints",
        spark=Spark(master=master, settings=settings),
    )
    options = {"jobs": (), "config": None, "files": (), "arguments": (), "deploy_mode": "client"}
    return submission(deployment, **{**options, **given})


def test_the_line_has_the_master_the_connector_and_the_profile() -> None:
    options = submitted(settings={"spark.executor.memory": "4g"}).options
    assert options[0] == ("--master", SERVER)
    assert ("--packages", "g:a:1") in options
    assert ("--conf", "spark.sql.session.timeZone=UTC") in options
    assert ("--conf", "spark.sql.adaptive.enabled=true") in options
    assert ("--conf", "spark.executor.memory=4g") in options


def test_settings_of_the_deployment_replace_those_of_the_profile() -> None:
    options = submitted(settings={"spark.driver.memory": "8g"}).options
    assert [option for option in options if "spark.driver.memory" in option[1]] == [
        ("--conf", "spark.driver.memory=8g")
    ]


def test_the_program_runs_the_given_jobs() -> None:
    found = submitted(jobs=["a", "b"], config=Path("/etc/p.toml"), files=[Path("/src/my.py")], arguments=["--once"])
    program, *arguments = found.program
    assert Path(program).is_file()
    assert arguments == ["a", "b", "--config", "/etc/p.toml", "--from", "/src/my.py", "--once"]
    assert found.command[0] == "spark-submit"
    assert found.command[-len(found.program) :] == found.program


def test_secrets_are_not_on_the_line() -> None:
    found = submitted(settings={"spark.hadoop.fs.s3a.secret.key": Secret("env", "S3")})
    assert not [word for word in found.command if "s3a.secret" in word]
    assert "The driver reads secrets from: env S3." in found.notes


def test_in_cluster_mode_the_files_travel_with_the_driver() -> None:
    found = submitted("yarn", config=Path("/etc/p.toml"), files=[Path("/src/my.py")], deploy_mode="cluster")
    assert ("--files", "/etc/p.toml,/src/my.py") in found.options
    assert found.program[0].startswith("local:///")
    assert found.program[1:] == ("--config", "p.toml", "--from", "my.py")


def test_a_local_lake_on_a_server_must_be_shared() -> None:
    assert "driver and workers must share it" in submitted(lake="/data/lake").notes[0]
    assert submitted("local[*]", lake="/data/lake").notes == ()


def test_a_wheel_without_compiled_modules_is_built_for_the_workers() -> None:
    found = submitted()
    assert "HEADRACE_COMPILE=0" in found.wheel
    [wheel] = [words[1] for words in found.options if words[0] == "--py-files"]
    assert wheel.endswith("-py3-none-any.whl")


def test_cluster_mode_is_refused_on_a_standalone_or_local_master() -> None:
    for master in (SERVER, "local[*]"):
        with pytest.raises(PipelineError, match="use --deploy-mode client, YARN or Kubernetes"):
            submitted(master, deploy_mode="cluster")


def test_kubernetes_needs_an_image() -> None:
    with pytest.raises(PipelineError, match=r"add `kubernetes\.container\.image` to \[spark\]"):
        submitted("k8s://https://host:6443")
    assert submitted("k8s://https://host:6443", settings={"spark.kubernetes.container.image": "i"}).options
