"""docs/pipeline/tutorial.md, in an empty folder: its files are written, its commands run, its output is compared.

`make test` runs the job and a test in the Spark session of other tests, and leaves out commands that start Spark.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from headrace.pipeline.generate.files import write_log
from headrace.pipeline.generate.parameters import Parameters
from tests.support.broker_process import BrokerProcess

if TYPE_CHECKING:
    from headrace.testing.pipeline import Lake

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "pipeline" / "tutorial.md").read_text()
_FILE = r"`(?P<name>[\w.]+)`:\n\n```\w+\n(?P<text>.*?)^```$"
_SHOWN = r"^```\n\$ (?P<shown>[^\n]+)\n(?P<output>.*?)^```$"
_COMMAND = r"^ {4}(?P<command>\S[^\n]*)$"
STEPS = [*re.finditer(rf"{_FILE}|{_SHOWN}|{_COMMAND}", PAGE, re.MULTILINE | re.DOTALL)]


def on_terminal(command: str, folder: Path, environment: dict[str, str]) -> str:
    """Run a command and return what it prints to a terminal of 100 columns, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    try:
        result = subprocess.run(
            command,
            shell=True,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        os.close(theirs)
    seen = b""
    try:
        while part := os.read(ours, 65536):
            seen += part
    except OSError:
        # Linux reports the end of a terminal as an error.
        pass
    finally:
        os.close(ours)
    shown = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen).decode().replace("\r\n", "\n")
    assert result.returncode == 0, f"{command}\n{shown}\n{result.stderr}"
    return shown


def folder_of_the_page(tmp_path: Path) -> Path:
    folder = tmp_path / "empty"
    folder.mkdir()
    for step in STEPS:
        if step["name"]:
            (folder / step["name"]).write_text(step["text"])
    assert sorted(path.name for path in folder.iterdir()) == ["my_jobs.py", "pipeline.toml", "test_my_jobs.py"]
    return folder


def commands() -> dict[str, list[str]]:
    """Return the lines that each command prints; an empty list if the page does not show them."""
    of_commands = [step for step in STEPS if not step["name"]]
    found = {step["shown"] or step["command"]: (step["output"] or "").splitlines() for step in of_commands}
    assert len(found) == 8
    return found


def run(command: str, folder: Path, broker: BrokerProcess) -> list[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HEADRACE_BOOTSTRAP": broker.bootstrap,
        "TERM": "xterm-256color",
    }
    return [line.rstrip() for line in on_terminal(command, folder, environment).splitlines()]


@pytest.mark.slow
def test_the_tutorial_leads_to_a_job_that_runs_and_is_tested(broker: BrokerProcess, tmp_path: Path) -> None:
    """Three of the commands start Spark."""
    folder = folder_of_the_page(tmp_path)
    for command, expected in commands().items():
        shown = run(command, folder, broker)
        assert not expected or shown == expected, command


def test_the_commands_that_check_the_files_of_the_tutorial_accept_them(broker: BrokerProcess, tmp_path: Path) -> None:
    folder = folder_of_the_page(tmp_path)
    for arguments in ("list", "describe broken_links"):
        command = f"headrace pipeline {arguments} --from my_jobs.py"
        assert command in commands()
        assert any("broken_links" in line for line in run(command, folder, broker))


@pytest.fixture
def page_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The test file of the page, imported in this process, which already has a Spark session."""
    monkeypatch.syspath_prepend(folder_of_the_page(tmp_path))
    yield import_module("test_my_jobs")
    for name in ("test_my_jobs", "my_jobs"):
        del sys.modules[name]


@pytest.mark.usefixtures("spark")
def test_a_test_of_the_tutorial_passes(page_tests: ModuleType, headrace_lake: "Lake") -> None:
    page_tests.test_only_missing_pages_are_counted(headrace_lake)


@pytest.mark.usefixtures("spark")
def test_the_job_of_the_tutorial_has_the_result_on_the_page(
    page_tests: ModuleType, headrace_lake: "Lake", tmp_path: Path
) -> None:
    write_log(Parameters(lines=5000, partitions=2), tmp_path / "log", progress=lambda _: None)
    lines = (tmp_path / "log" / "access.log").read_bytes().splitlines()
    rows = headrace_lake.run_once(page_tests.broken_links, lines).tables["broken_links"]
    most = sorted(rows, key=lambda row: (-row["requests"], row["page"]))[:3]
    [(_, *shown)] = filter(None, commands().values())
    assert [[row["page"], str(row["requests"])] for row in most] == [line.split() for line in shown]
