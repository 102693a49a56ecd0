"""Errors about files of offsets and about resets without offsets."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli import group_calls, group_reset
from headrace.cli.failures import CommandError, missing_partition
from headrace.cli.offset_plan import Selection, read_offsets
from headrace.cli.positions import Position, Start
from tests.support.refusals import wrong_reasons

CLUSTER: Any = SimpleNamespace(partitions=lambda _: [0])


def test_the_error_names_the_place_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "offsets"

    def read(text: str) -> None:
        path.write_text(text)
        read_offsets(str(path))

    problems = {
        "[1": " is not JSON: ",
        "[" * 100_000: " is not JSON: ",
        "{}": " has no list of offsets",
        '[{"topic": "t", "partition": 0, "offset": 1}, {"topic": "t"}]': ", entry 2: expected 'topic', 'partition' and",
        '[{"topic": "t", "partition": 0, "offset": 1e400}]': ", entry 1: expected 'topic', 'partition' and",
        '[{"topic": "t", "partition": 2147483648, "offset": 1}]': ", entry 1: expected 'topic', 'partition' and",
        "t,-1,1": ", line 1: expected 'topic,partition,offset', not 't,-1,1'",
        "t,0,1\nt,0,x": ", line 2: expected 'topic,partition,offset', not 't,0,x'",
        "topic\tpartition\tcurrent\tnew\nt\t0\t1\t\n": ", line 2: expected 'topic,partition,offset', not 't\t0\t1\t'",
    }
    assert wrong_reasons({text: f"{path}{problem}" for text, problem in problems.items()}, read) == {}


@pytest.mark.parametrize(
    ("shift_by", "from_file", "topics", "problem"),
    [
        (1, None, {}, "group 'g' has no committed offsets"),
        (1, None, {"t": None}, "group 'g' has no committed offsets in these partitions"),
        (None, None, {}, "group 'g' has no committed offsets to reset"),
        (
            None,
            "offsets.csv",
            {"u": None},
            "offsets.csv has no offsets for group 'g' in the partitions given with --topic",
        ),
    ],
)
def test_the_error_about_nothing_to_reset_names_the_cause(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shift_by: int | None,
    from_file: str | None,
    topics: dict[str, None],
    problem: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(group_calls, "committed", lambda *_: {})
    Path("offsets.csv").write_text("t,0,1\n")
    target = Position(Start.END) if shift_by is None and from_file is None else None
    with pytest.raises(CommandError) as raised:
        group_reset.steps(CLUSTER, "g", target, shift_by, from_file, Selection(topics))
    assert raised.value.what == problem


def test_the_error_about_a_missing_partition_shows_the_existing_ones() -> None:
    assert missing_partition("t", 5, 0).hint == "It has only partition 0."
    assert missing_partition("t", 5, 2).hint == "It has partitions 0 to 2."
