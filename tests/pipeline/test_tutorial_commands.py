"""Every command of docs/pipeline/tutorial.md as a process, on a terminal, in an empty folder. Three start Spark."""

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

from tests.pipeline.tutorial import commands, folder_with_files
from tests.support.broker_process import BrokerProcess


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


@pytest.mark.slow
def test_the_tutorial_leads_to_a_job_that_runs_and_is_tested(broker: BrokerProcess, tmp_path: Path) -> None:
    folder = folder_with_files(tmp_path)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HEADRACE_BOOTSTRAP": broker.bootstrap,
        "TERM": "xterm-256color",
    }
    for command, expected in commands().items():
        shown = on_terminal(command, folder, environment)
        assert not expected or [line.rstrip() for line in shown.splitlines()] == expected, command
