"""Errors about missing requirements of Spark."""

import importlib.util
from pathlib import Path

import pytest

from headrace.pipeline import requirements
from headrace.pipeline.errors import PipelineError


def _java(home: Path, output: str) -> None:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
    program.chmod(0o755)


@pytest.mark.parametrize("output", ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19 LTS'])
def test_java_17_to_22_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    _java(tmp_path, output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    requirements.check_java()


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ('java version "1.8.0_292"', "is Java 8, but Spark 4.0 needs Java 17 to 22"),
        ('openjdk version "25.0.1" 2025-10-21', "is Java 25, but Spark 4.0 needs Java 17 to 22"),
        ("The operation could not be completed. Unable to locate a Java Runtime.", "printed no version"),
    ],
)
def test_other_java_versions_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, complaint: str
) -> None:
    _java(tmp_path, output)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=complaint):
        requirements.check_java()


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PipelineError, match="java is not on the PATH"):
        requirements.check_java()


def test_a_java_home_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match="JAVA_HOME is"):
        requirements.check_java()


@pytest.mark.parametrize("missing", ["pyspark", "delta"])
def test_a_missing_package_is_reported_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else found(name))
    with pytest.raises(PipelineError, match=r"pip install 'headrace\[pipeline\]'"):
        requirements.check()
