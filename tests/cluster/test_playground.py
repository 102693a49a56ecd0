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
from tests.cluster.conftest import HEADRACE, metadata
from tests.support.broker_process import answers_api_versions
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
_WITHIN_S = 180.0


class Terminal:
    """The running program and its output."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._output = base.with_name("terminal.txt")
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.playground", "--directory", str(base)],
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
    def addresses(self) -> list[str]:
        """The addresses of the brokers in the table, Headrace first."""
        return re.findall(r"^\d (?:Headrace|Kafka 3\.9) +(127\.0\.0\.1:\d+) ", self.text, re.MULTILINE)


@pytest.fixture(scope="module")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    zookeeper_jars()
    terminal = Terminal(tmp_path_factory.mktemp("playground") / "cluster")
    terminal.wait_for("Ctrl-C stops everything")
    yield terminal
    terminal.close()


def test_a_playground_shows_obeys_and_stops(terminal: Terminal) -> None:
    """One test, because the cluster takes half a minute to start."""
    headrace, *kafkas = terminal.addresses
    assert len(kafkas) == 2
    for address in terminal.addresses:
        assert {broker["node_id"] for broker in metadata(address)["brokers"]} == {HEADRACE, 7, 8}
    for path in re.findall(r"(?:headrace|kafka-\d|zookeeper)\S*(?:data|\.log)\b", terminal.text.partition("Try")[0]):
        assert (terminal.base / path).exists(), path

    terminal.shell("headrace topics create orders --partitions 6")
    terminal.shell("seq 1000 | headrace produce orders")
    described = terminal.shell("bin/kafka-topics --describe --topic orders")
    assert set(re.findall(r"Leader: (\d)", described)) == {"4", "7", "8"}
    terminal.shell("bin/kafka-reassign-partitions --reassignment-json-file to-headrace.json --execute")
    terminal.shell("bin/kafka-leader-election --election-type preferred --all-topic-partitions")
    described = terminal.shell("bin/kafka-topics --describe --topic orders")
    assert set(re.findall(r"Leader: (\d)", described)) == {"4"}

    terminal.enter("kill 4", "Broker 4: kill done")
    host, port = headrace.split(":")
    assert not answers_api_versions(host, int(port))
    terminal.enter("start 4", "Broker 4: start done")
    assert answers_api_versions(host, int(port))
    terminal.enter("explode 4", "Not understood")

    assert terminal.interrupt() == 0
    assert "Stopped." in terminal.text
    assert "Traceback" not in terminal.text
    for address in terminal.addresses:
        host, port = address.split(":")
        assert not answers_api_versions(host, int(port))
