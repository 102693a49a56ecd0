from pathlib import Path

import pytest

from headrace.pipeline import jars
from headrace.pipeline.errors import PipelineError


def test_the_versions_come_from_the_pom() -> None:
    assert jars.maven_coordinates() == (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "io.delta:delta-spark_2.13:4.0.0",
    )


def test_the_jars_of_a_given_directory_are_used(tmp_path: Path) -> None:
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    assert jars.spark_settings({"HEADRACE_SPARK_JARS": str(tmp_path)}) == {
        "spark.jars": f"{tmp_path / 'a.jar'},{tmp_path / 'b.jar'}"
    }


def test_a_given_directory_without_jars_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="contains no jars"):
        jars.spark_settings({"HEADRACE_SPARK_JARS": str(tmp_path)})


def test_without_jars_spark_downloads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_project_jars", lambda: None)
    assert jars.spark_settings({}) == {"spark.jars.packages": ",".join(jars.maven_coordinates())}
