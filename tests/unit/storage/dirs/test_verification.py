"""`headrace verify` finds damage in files."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.verification import Finding, verify_partition
from headrace.storage.log.log import Log
from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.support.wire_client import WireClient
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


def test_a_flipped_byte_damages_only_its_batch(log: Log) -> None:
    segment = log.segments.ordered[1]
    (_, _), (position, header), (following, _) = list(segment.headers())[:3]
    flip(segment.path, position + 90)
    [finding] = found(log)
    assert finding[:3] == (segment.path, position, header.base_offset)
    assert finding.what == f"{following - position} bytes are damaged"


def test_a_damaged_length_is_reported_up_to_the_next_valid_batch(log: Log) -> None:
    segment = log.segments.ordered[0]
    batches = list(segment.headers())
    flip(segment.path, batches[2][0] + 8)
    [finding] = found(log)
    assert (finding.position, finding.offset) == (batches[2][0], batches[2][1].base_offset)
    assert finding.what == f"{batches[3][0] - batches[2][0]} bytes are damaged"


def test_a_torn_tail_needs_no_repair(log: Log) -> None:
    path = log.segments.active.path
    with path.open("ab") as file:
        file.write(b"\0" * 30)
    [finding] = found(log)
    assert (finding.position, finding.offset) == (log.segments.active.size, 80)
    assert "the next start after a crash cuts it off" in finding.remedy


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


def test_the_command_prints_damage_and_exits_with_1(log: Log) -> None:
    run = CliRunner().invoke(app, ["verify", str(log.directory.parent)])
    assert (run.exit_code, run.stdout) == (0, "")
    flip(log.segments.ordered[0].path, 100)
    run = CliRunner().invoke(app, ["verify", str(log.directory)])
    assert run.exit_code == 1
    assert f"{log.segments.ordered[0].path}\t0\t0\t" in run.stdout
    assert '"position": 0' in CliRunner().invoke(app, ["verify", "--json", str(log.directory)]).stdout


def test_a_timestamp_lookup_in_a_damaged_batch_is_an_error(log: Log) -> None:
    position, header = list(log.segments.ordered[0].headers())[3]
    flip(log.segments.ordered[0].path, position + 90)
    with pytest.raises(KafkaError, match=f"byte {position}, offset {header.base_offset}: the file is") as raised:
        log.reader.offset_for_timestamp(header.max_timestamp)
    assert raised.value.code is ErrorCode.corrupt_message


# -- which directories -------------------------------------------------------------------------------------------------


def verified(*directories: Path) -> tuple[int, str]:
    """Run the command, and return its exit code and output."""
    result = CliRunner().invoke(app, ["verify", *map(str, directories)], env={"COLUMNS": "2000"})
    return result.exit_code, result.output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A log directory with the topics `t` and `u`."""
    data = tmp_path / "data"
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        for name in ("t", "u"):
            new = {"name": name, "num_partitions": 2, "replication_factor": 1}
            topics: list[dict[str, object]] = [{**new, "assignments": [], "configs": []}]
            client.ask(ApiKey.CREATE_TOPICS, 5, {"topics": topics, "timeout": 9000, "validate_only": False})
    return data


def test_an_intact_log_directory_with_or_without_topics_passes(data: Path, tmp_path: Path) -> None:
    status, text = verified(data)
    assert status == 0
    assert "Read 4 partitions" in text
    assert verified(data / "t-0")[0] == 0
    with Broker(data=tmp_path / "new"):
        assert verified(tmp_path / "new")[0] == 0


def test_other_directories_are_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "named-0").mkdir()
    for directory in (Path("/etc"), tmp_path / "empty"):
        status, text = verified(directory)
        assert status == 1
        assert f"{directory} is not a log directory" in text
    status, text = verified(data.parent)
    assert status == 1
    assert f"Did you mean {data}?" in text


def test_a_malformed_topic_id_is_found(data: Path) -> None:
    (data / "t-1" / "partition.metadata").write_text("nonsense")
    status, text = verified(data)
    assert status == 1
    assert "t-1/partition.metadata is malformed" in text


@pytest.mark.parametrize("with_metadata", [True, False])
def test_a_swapped_topic_id_is_found(data: Path, with_metadata: bool) -> None:
    (data / "t-1" / "partition.metadata").write_bytes((data / "u-0" / "partition.metadata").read_bytes())
    if not with_metadata:
        (data / "metadata.db").unlink()
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    status, text = verified(data)
    assert status == 1
    assert "t-1/partition.metadata" in text
    assert "remove the file while the broker is down" in text
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_topics_that_have_exchanged_their_ids_are_found(data: Path) -> None:
    ids = {name: (data / f"{name}-0" / "partition.metadata").read_bytes() for name in "tu"}
    for name, other in ("tu", "ut"):
        for partition in (0, 1):
            (data / f"{name}-{partition}" / "partition.metadata").write_bytes(ids[other])
    assert "4 damaged places" in verified(data)[1]


def test_stray_directories_are_found_with_the_commands_to_restore_them(data: Path) -> None:
    stray = data / "t-0.0123456789abcdef0123456789abcdef-stray"
    (data / "t-0").rename(stray)
    status, text = verified(data)
    assert status == 1
    assert f"mv '{stray}' '{data / 't-0'}'" in text


def test_damaged_metadata_is_found(data: Path) -> None:
    (data / "metadata.db").write_bytes(b"nonsense" * 1000)
    status, text = verified(data)
    assert status == 1
    assert "metadata.db" in text
