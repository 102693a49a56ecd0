"""Commands in separate processes: in pipes, and stopped while they wait."""

import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cli.conftest import Headrace
from tests.cli.processes import read_line, running, start, write_line
from tests.support.waiting import wait_for


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
def test_a_stopped_consumer_prints_its_count_and_ends_quietly(
    headrace: Headrace, topic: str, environment: Mapping[str, str], how: signal.Signals
) -> None:
    headrace("produce", topic, stdin="a\n")
    with running(environment, "consume", topic) as consumer:
        assert read_line(consumer) == "a\n"
        consumer.send_signal(how)
        out, err = consumer.communicate(timeout=20)
    assert (consumer.returncode, out) == (130, "")
    assert err.startswith(f"1 record (1 B) from {topic} in ")
    assert len(err.splitlines()) == 1


def test_a_stopped_group_member_has_committed_the_printed_records(
    headrace: Headrace, topic: str, environment: Mapping[str, str]
) -> None:
    group = ("--group", f"{topic}-group")
    headrace("produce", topic, "-p", "0", stdin="a\n")
    with running(environment, "consume", topic, *group) as consumer:
        assert read_line(consumer) == "a\n"
        consumer.send_signal(signal.SIGINT)
        consumer.communicate(timeout=20)
    headrace("produce", topic, "-p", "0", stdin="b\n")
    assert headrace("consume", topic, *group, "--until-end").stdout == "b\n"


def test_a_consumer_at_the_end_prints_new_records(
    headrace: Headrace, topic: str, environment: Mapping[str, str]
) -> None:
    headrace("produce", topic, "-p", "0", stdin="a\n")
    with running(environment, "consume", topic) as consumer:
        assert read_line(consumer) == "a\n"
        headrace("produce", topic, "-p", "1", stdin="b\n")
        assert read_line(consumer) == "b\n"


def test_a_stopped_producer_sends_its_input(headrace: Headrace, topic: str, environment: Mapping[str, str]) -> None:
    with running(environment, "consume", topic) as consumer, running(environment, "produce", topic) as producer:
        write_line(producer, "a")
        assert read_line(consumer) == "a\n"
        producer.send_signal(signal.SIGINT)
        assert producer.wait(timeout=20) == 130
        assert producer.stderr is not None
        assert "Traceback" not in producer.stderr.read()


def test_a_closed_pipe_ends_the_consumer_quietly(
    headrace: Headrace, topic: str, environment: Mapping[str, str]
) -> None:
    headrace("produce", topic, stdin="".join(f"{number}\n" for number in range(20_000)))
    result = _shell(f"headrace consume {topic} | head -n 3", environment)
    assert result.returncode == 0
    assert len(result.stdout.splitlines()) == 3
    assert result.stderr == ""


def test_a_topic_is_copied_through_a_pipe(
    headrace: Headrace, topic: str, new_name: Callable[[], str], environment: Mapping[str, str]
) -> None:
    copy = new_name()
    headrace("produce", topic, stdin="".join(f"{number}\n" for number in range(20_000)))
    result = _shell(
        f"headrace consume {topic} -e -q --jsonl | headrace produce {copy} --create --jsonl -q", environment
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert len(headrace("consume", copy, "--until-end").stdout.splitlines()) == 20_000


def _shell(command: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    prelude = f'set -o pipefail; headrace() {{ "{sys.executable}" -m headrace "$@"; }}; '
    return subprocess.run(
        ["bash", "-c", prelude + command], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_members_of_a_group_share_the_partitions(
    headrace: Headrace, topic: str, environment: Mapping[str, str], tmp_path: Path
) -> None:
    words = ("consume", topic, "--group", f"{topic}-group", "--format", "{partition}")
    outputs = [tmp_path / "first", tmp_path / "second"]

    def partitions_are_shared() -> bool:
        for output in outputs:
            output.write_text("")
        for partition in ("0", "1"):
            headrace("produce", topic, "--partition", partition, stdin="x\n")
        wait_for(lambda: sum(len(output.read_text().split()) for output in outputs) >= 2, "both records")
        return sorted(output.read_text().split() for output in outputs) == [["0"], ["1"]]

    with ExitStack() as members:
        for output in outputs:
            member = start(environment, *words, stdout=members.enter_context(output.open("a")))
            members.callback(member.communicate)
            members.callback(member.terminate)
        wait_for(partitions_are_shared, "one partition per member", timeout_s=40)
