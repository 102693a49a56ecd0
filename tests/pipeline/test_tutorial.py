"""The commands of docs/pipeline/tutorial.md print what the page shows, in the Spark session of other tests.

`test_tutorial_commands` runs them as processes, and also the tests of the page.
"""

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from tests.pipeline.tutorial import commands, folder_with_files
from tests.support.broker_process import BrokerProcess


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
