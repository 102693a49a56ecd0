import os
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.verify import verify
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.verification import Finding, verify_partition
from headrace.storage.log.indexes.txn_index import AbortedTransaction
from headrace.storage.log.log import Log
from tests.unit.storage.logs import NOW, append, open_log


@pytest.fixture
def log(tmp_path: Path) -> Log:
    log = open_log(tmp_path / "t-0")
    for place in range(40):
        append(log, 2, timestamp=NOW + place)
    log.close()
    return open_log(tmp_path / "t-0", clean=True)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)


def found(log: Log) -> list[Finding]:
    return verify_partition(log.directory).findings


def test_an_intact_log_has_no_findings(log: Log) -> None:
    verified = verify_partition(log.directory)
    assert verified.findings == []
    assert (verified.segments, verified.bytes) == (len(log.segments.ordered), log.segments.size)


@pytest.mark.parametrize("content", [b"torn", bytes(34)])
def test_an_invalid_transaction_index_is_reported_and_rebuilt_at_the_next_start(log: Log, content: bytes) -> None:
    index = log.segments.ordered[1].txn_index
    index.append(AbortedTransaction(1, log.segments.ordered[1].base_offset, log.segments.ordered[1].base_offset + 1, 0))
    assert found(log) == []
    index.path.write_bytes(content)
    [finding] = found(log)
    assert finding[:4] == (index.path, None, None, "is not a valid transaction index")
    log.close()
    assert found(open_log(log.directory, clean=True)) == []


def test_the_remedy_for_a_transaction_index_works(log: Log) -> None:
    first, second = log.segments.ordered[:2]
    second.txn_index.path.mkdir()
    [finding] = found(log)
    assert finding.what == "is not a regular file"
    assert "remove the segment's .index file" in finding.remedy

    second.txn_index.path.rmdir()
    second.txn_index.path.write_bytes(b"torn")
    flip(first.path, 90)
    assert [item.remedy for item in found(log) if item.file == second.txn_index.path] == [
        "restore the file from a replica or a backup"
    ]


def test_damage_is_reported_up_to_the_next_valid_batch(log: Log) -> None:
    expected = []
    # in the length of one batch, and in the records of another
    for segment, place in zip(log.segments.ordered, (8, 90), strict=False):
        (_, _), (position, header), (following, _) = list(segment.headers())[:3]
        expected.append((segment.path, position, header.base_offset, f"{following - position} bytes are damaged"))
        flip(segment.path, position + place)
    assert [finding[:4] for finding in found(log)] == expected


def test_a_torn_tail_needs_no_repair(log: Log) -> None:
    path = log.segments.active.path
    with path.open("ab") as file:
        file.write(b"\0" * 30)
    [finding] = found(log)
    assert (finding.position, finding.offset) == (log.segments.active.size, 80)
    assert "the next start after a crash truncates it" in finding.remedy


def test_indexes_snapshots_and_epochs_are_checked(log: Log) -> None:
    flip(log.segments.ordered[0].index.path, 7)
    log.segments.ordered[1].time_index.path.unlink()
    (log.directory / "00000000000000000006.snapshot").write_bytes(b"garbage")
    (log.directory / "leader-epoch-checkpoint").write_text("garbage\n1\n")
    assert {finding.file.name for finding in found(log)} == {
        log.segments.ordered[0].index.path.name,
        log.segments.ordered[1].time_index.path.name,
        "00000000000000000006.snapshot",
        "leader-epoch-checkpoint",
    }


def test_a_fifo_in_place_of_a_segment_is_reported_without_opening_it(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    os.mkfifo(path)
    verified = verify_partition(tmp_path)
    assert [(finding.file, finding.offset) for finding in verified.findings] == [(path, 0)]
    assert "is not a regular file" in verified.findings[0].what


def test_the_command_prints_damage_and_exits_with_1(log: Log) -> None:
    app = typer.Typer()
    app.command()(verify)
    run = CliRunner().invoke(app, [str(log.directory.parent)])
    assert (run.exit_code, run.stdout) == (0, "")
    flip(log.segments.ordered[0].path, 100)
    run = CliRunner().invoke(app, [str(log.directory)])
    assert run.exit_code == 1
    assert f"{log.segments.ordered[0].path}\t0\t0\t" in run.stdout
    assert '"position": 0' in CliRunner().invoke(app, ["--json", str(log.directory)]).stdout


def test_a_timestamp_lookup_in_a_damaged_batch_is_an_error(log: Log) -> None:
    position, header = list(log.segments.ordered[0].headers())[3]
    flip(log.segments.ordered[0].path, position + 90)
    with pytest.raises(KafkaError, match=f"byte {position}, offset {header.base_offset}: the file is") as raised:
        log.reader.offset_for_timestamp(header.max_timestamp)
    assert raised.value.code is ErrorCode.corrupt_message
