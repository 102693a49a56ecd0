"""docs/pipeline/tutorial.md, in the Spark session of other tests: its commands run and print, and its tests pass."""

import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from tests.pipeline.tutorial import commands, folder_with_files
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from headrace.testing.pipeline import Lake


@pytest.mark.usefixtures("commands_share_spark")
def test_the_commands_of_the_tutorial_print_what_the_page_shows(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)
    monkeypatch.chdir(folder_with_files(tmp_path))
    printed = {}
    for command, expected in commands().items():
        program, *arguments = shlex.split(command)
        if program == "headrace":
            result = CliRunner().invoke(app, arguments, catch_exceptions=False)
            assert result.exit_code == 0, f"{command}\n{result.output}"
            printed[arguments[0], arguments[1]] = lines = [line.split() for line in result.stdout.splitlines()]
            assert not expected or lines == [line.split() for line in expected], command
    assert len(printed) == 7
    assert len(printed["consume", "broken-links"]) > 10


@pytest.fixture
def page_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The test file of the page."""
    monkeypatch.syspath_prepend(folder_with_files(tmp_path))
    yield import_module("test_my_jobs")
    for name in ("test_my_jobs", "my_jobs"):
        del sys.modules[name]


@pytest.mark.usefixtures("spark")
def test_the_tests_of_the_tutorial_pass(page_tests: ModuleType, headrace_lake: "Lake") -> None:
    page_tests.test_only_missing_pages_are_counted(headrace_lake)
    page_tests.test_a_stream_has_the_result_of_one_batch()
