"""Commands that ask before they change replicas: with --json, only JSON is on standard output."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli import output, reassign
from headrace.cli.cluster import Cluster
from headrace.cli.main import app
from headrace.cli.placement import execution, kafka_json, requests
from headrace.cli.placement.elections import ELECTED
from headrace.cli.placement.state import State
from tests.support.placements import partition, state
from tests.support.refusals import wrong_reasons

BEFORE = state(
    (1, 2, 3),
    [
        partition("t", 0, (9, 2), isr=(9,), leader=None),
        partition("t", 1, (1, 2)),
        partition("t", 2, (1, 2, 3), adding=(3,)),
    ],
)
ELECTED_2 = state((1, 2, 3), [partition("t", 0, (9, 2), isr=(2,))])
PLAN = kafka_json.written({("t", 1): (1, 3)})


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster that accepts every change; standard input passes for a terminal."""
    states = [BEFORE]

    def read_state(*_: object, **__: object) -> State:
        return states[0]

    def elect(*_: object) -> dict[Any, Any]:
        states[0] = ELECTED_2
        return {}

    monkeypatch.setattr(Cluster, "connect", lambda _: SimpleNamespace(bootstrap="b:1"))
    monkeypatch.setattr(requests, "read_state", read_state)
    monkeypatch.setattr(requests, "elect", elect)
    monkeypatch.setattr(execution, "start", lambda *_: {})
    monkeypatch.setattr(execution, "cancel", lambda *_: (BEFORE, {}))
    monkeypatch.setattr(output, "is_terminal", lambda stream: stream is sys.stdin)


def run(tmp_path: Path, line: str) -> Any:
    (tmp_path / "plan.json").write_text(PLAN)
    words = [str(tmp_path / word) if word == "plan.json" else word for word in line.split()]
    result = CliRunner().invoke(app, words, input="y\n")
    assert result.exit_code == 0
    return result


@pytest.mark.parametrize("as_json", [True, False])
@pytest.mark.parametrize(
    ("line", "question", "row"),
    [
        ("elect t:0 --unclean --execute", "Elect leaders for 1 partition", "t:0\t-\t2"),
        (
            "reassign execute plan.json --additional",
            "1 replica of 1 partition to copy (size unknown)?",
            "t:1\t1,2\t1,3",
        ),
        ("reassign cancel t:2", "Cancel the moves of 1 partition?", "t:2\t"),
    ],
)
def test_the_question_and_its_table_are_no_json(
    line: str, question: str, row: str, as_json: bool, tmp_path: Path
) -> None:
    result = run(tmp_path, line + " --json" * as_json)
    assert question in result.stderr
    assert row in (result.stderr if as_json else result.stdout)
    if as_json:
        assert json.loads(result.stdout)
        assert result.stdout[0] in "[{"


def test_the_json_of_an_election_has_its_result(tmp_path: Path) -> None:
    result = run(tmp_path, "elect t:0 --unclean --execute --json")
    assert [one["election"] for one in json.loads(result.stdout)] == [ELECTED]


def test_an_unreadable_plan_on_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Directory(io.StringIO):
        def read(self, _: int | None = -1) -> str:
            raise IsADirectoryError(21, "Is a directory")

    def read(stdin: io.TextIOBase) -> None:
        monkeypatch.setattr(sys, "stdin", stdin)
        reassign._read("-")

    reasons: dict[io.TextIOBase, str] = {
        io.TextIOWrapper(io.BytesIO(b"\xff"), "utf-8"): "standard input is not UTF-8",
        io.TextIOWrapper(io.BytesIO(b"{"), "utf-8"): "standard input is not JSON",
        Directory(): "cannot read standard input: is a directory",
    }
    assert wrong_reasons(reasons, read) == {}


def test_a_plan_file_that_cannot_be_read(tmp_path: Path) -> None:
    absent, binary = tmp_path / "absent", tmp_path / "binary"
    binary.write_bytes(b"\xff")
    reasons = {
        str(absent): f"cannot read '{absent}': no such file or directory",
        str(binary): f"{binary} is not UTF-8",
    }
    assert wrong_reasons(reasons, reassign._read) == {}
