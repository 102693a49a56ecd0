"""The quickstart of README.md against a broker on another port."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()
QUICKSTART = README.partition("## Quickstart")[2].partition("\n## ")[0]


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    return BrokerProcess(tmp_path / "data")


def test_the_quickstart_prints_hello(broker: BrokerProcess) -> None:
    terminal = QUICKSTART.partition("In a second terminal:")[2]
    commands = re.findall(r"^ {4}(.+)$", terminal.partition("`headrace start`")[0], re.MULTILINE)
    assert len(commands) == 3
    [program] = re.findall(r"^```python\n(.*?)^```", QUICKSTART, re.MULTILINE | re.DOTALL)

    with broker:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HEADRACE_BOOTSTRAP": broker.bootstrap,
        }

        def shell(command: str) -> str:
            result = subprocess.run(
                command, shell=True, env=environment, capture_output=True, text=True, check=True, timeout=60
            )
            return result.stdout

        for command in commands[:-1]:
            shell(command)
        exec(compile(program.replace("127.0.0.1:9092", broker.bootstrap), "README.md", "exec"), {})

        output = shell(commands[-1])

    assert sorted(output.splitlines()) == ["hello from a program", "hello, world"]
