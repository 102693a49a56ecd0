"""Fixtures of the pipeline's tests: a broker, a real access log, and the demo as a command."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.spark import spark, tolerate_open_sockets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.nodeid.startswith("tests/pipeline/")]
    tolerate_open_sockets(own)
    for item in own:
        # seconds on an idle machine, minutes on a busy one
        item.add_marker(pytest.mark.timeout(900))
    if importlib.util.find_spec("pyspark") is None:
        for item in own:
            item.add_marker(pytest.mark.skip(reason="the extra headrace[pipeline] is not installed"))


@pytest.fixture(scope="session")
def access_log() -> Path:
    """A real web server's log of four days."""
    path = Path(os.environ.get("HEADRACE_SHARED", ROOT.parent / "shared")) / "data" / "access.log"
    if not path.is_file():
        pytest.skip(f"no {path}: set HEADRACE_SHARED to the directory with data/access.log")
    return path


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker") as process:
        yield process


@pytest.fixture
def commands_share_spark(spark: "SparkSession", monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that run in this process use the session of the tests."""
    monkeypatch.setattr("headrace.pipeline.engine.session.build", lambda *_, **__: spark)
    monkeypatch.setattr("headrace.pipeline.engine.session.stop", lambda _: None)


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", "demo", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=880, check=False)


def demo_totals(*arguments: str) -> dict[str, Any]:
    """Run `headrace demo --json` and return the one object it prints."""
    result = run_demo(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1
    totals: dict[str, Any] = json.loads(result.stdout)
    return totals
