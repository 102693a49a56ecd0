"""docs/pipeline/tutorial.md, in an empty folder: its files are written, its commands run, its output is compared."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess

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


def test_the_tutorial_leads_to_a_job_that_runs_and_is_tested(broker: BrokerProcess, tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    folder = tmp_path / "empty"
    folder.mkdir()
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HEADRACE_BOOTSTRAP": broker.bootstrap,
        "TERM": "xterm-256color",
    }
    ran = []
    for step in STEPS:
        if step["name"]:
            (folder / step["name"]).write_text(step["text"])
            continue
        command = step["shown"] or step["command"]
        shown = on_terminal(command, folder, environment)
        ran.append(command)
        if step["shown"]:
            assert [line.rstrip() for line in shown.splitlines()] == step["output"].splitlines(), command
    assert sorted(path.name for path in folder.iterdir() if path.suffix in (".py", ".toml")) == [
        "my_jobs.py",
        "pipeline.toml",
        "test_my_jobs.py",
    ]
    assert len(ran) == 8
