"""`make cluster` prints addresses, executes commands, and leaves no process running."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adoption.kafka import zookeeper_jars
from tests.cluster.conftest import metadata
from tests.support.broker_process import answers_api_versions
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
_WITHIN_S = 180.0


class Terminal:
    """The running program and its output."""

    def __init__(self, base: Path, *options: str) -> None:
        self.base = base
        self._output = base.with_name("terminal.txt")
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.playground", "--directory", str(base), *options],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                start_new_session=True,  # Ctrl-C reaches a terminal's whole process group
            )

    @property
    def text(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str) -> None:
        wait_for(lambda: text in self.text or self._process.poll() is not None, text, timeout_s=_WITHIN_S)
        assert text in self.text, self.text

    def enter(self, command: str, answer: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n".encode())
        self._process.stdin.flush()
        self.wait_for(answer)

    def interrupt(self) -> int:
        os.killpg(self._process.pid, signal.SIGINT)
        return self._process.wait(60)

    def close(self) -> None:
        if self._process.poll() is None:
            self.interrupt()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def shell(self, command: str) -> str:
        """Run one of the commands that are suggested."""
        environment = re.search(r"^  export (.*)$", self.text, re.MULTILINE)
        assert environment is not None
        done = subprocess.run(
            f"export {environment[1]}; {command}",
            shell=True,
            cwd=self.base,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def brokers(self) -> dict[int, str]:
        """The addresses of the brokers in the table."""
        rows = re.findall(r"^(\d) \S.*? +(127\.0\.0\.1:\d+) ", self.text, re.MULTILINE)
        return {int(number): address for number, address in rows}


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    zookeeper_jars()
    terminal = Terminal(tmp_path / "cluster", *request.param)
    terminal.wait_for("Ctrl-C stops everything")
    yield terminal
    terminal.close()


def check_table(terminal: Terminal, *brokers: int) -> None:
    """The table has these brokers, which know each other, and files that exist."""
    assert set(terminal.brokers) == set(brokers)
    for address in terminal.brokers.values():
        assert {broker["node_id"] for broker in metadata(address)["brokers"]} == set(brokers)
    for path in re.findall(r"(?:headrace|kafka|zookeeper)\S*(?:data|\.log)\b", terminal.text.partition("Try")[0]):
        assert (terminal.base / path).exists(), path


def check_end(terminal: Terminal) -> None:
    """Ctrl-C leaves nothing."""
    assert terminal.interrupt() == 0
    assert "Stopped." in terminal.text
    assert "Traceback" not in terminal.text
    for address in terminal.brokers.values():
        host, port = address.split(":")
        assert not answers_api_versions(host, int(port))


@pytest.mark.parametrize("terminal", [()], indirect=True, ids=["headrace"])
def test_a_playground_shows_obeys_and_stops(terminal: Terminal) -> None:
    """One test, because the cluster takes a while to start."""
    check_table(terminal, 1, 2, 3)
    terminal.shell("headrace topics create orders --partitions 6")
    terminal.shell("seq 1000 | headrace produce orders")
    assert len(terminal.shell("headrace consume orders --until-end").splitlines()) == 1000
    terminal.shell("headrace cluster")
    (command,) = re.findall(r"curl -s (\S+) \| grep kafka_controller", terminal.text)
    assert "kafka_controller_kafkacontroller_activecontrollercount" in terminal.shell(f"curl -s {command}")

    terminal.enter("kill 1", "Broker 1: kill done")
    host, port = terminal.brokers[1].split(":")
    assert not answers_api_versions(host, int(port))
    terminal.enter("start 1", "Broker 1: start done")
    assert answers_api_versions(host, int(port))
    terminal.enter("explode 1", "Not understood")
    check_end(terminal)


@pytest.mark.parametrize("terminal", [("--kafka",)], indirect=True, ids=["kafka"])
def test_kafkas_brokers_take_over_and_give_back(terminal: Terminal) -> None:
    check_table(terminal, 1, 2, 3, 7, 8)
    terminal.shell("headrace topics create orders --partitions 6")
    commands = re.findall(r"^  (\S+ .*(?:to-kafka|to-headrace)\.json.*)$", terminal.text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        terminal.shell(command.replace(" --watch", " --watch --yes"))  # without a terminal
    terminal.shell("until headrace reassign verify to-headrace.json; do sleep 1; done")
    check_end(terminal)
