"""Where the connector jars come from."""

from pathlib import Path

import pytest

from headrace.pipeline import jars
from headrace.pipeline.errors import PipelineError


def test_the_versions_are_those_of_the_pom() -> None:
    assert jars.maven_coordinates() == (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "io.delta:delta-spark_2.13:4.0.0",
    )


def test_a_directory_of_jars_is_used_when_it_is_named(tmp_path: Path) -> None:
    for name in ("b.jar", "a.jar", "notes.txt"):
        (tmp_path / name).touch()
    assert jars.spark_settings({"HEADRACE_SPARK_JARS": str(tmp_path)}) == {
        "spark.jars": f"{tmp_path / 'a.jar'},{tmp_path / 'b.jar'}"
    }


def test_a_named_directory_without_jars_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="contains no jars"):
        jars.spark_settings({"HEADRACE_SPARK_JARS": str(tmp_path)})


def test_without_any_jars_spark_downloads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "_project_jars", lambda: None)
    assert jars.spark_settings({}) == {"spark.jars.packages": ",".join(jars.maven_coordinates())}
