"""`headrace verify` on the directories of a stopped broker."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import app
from headrace.testing import Broker
from tests.support.topic_requests import create
from tests.support.wire_client import WireClient


def verify(*directories: Path) -> tuple[int, str]:
    """Return the exit code and the output."""
    result = CliRunner().invoke(app, ["verify", *map(str, directories)], env={"COLUMNS": "2000"})
    return result.exit_code, result.output


@pytest.fixture
def data(tmp_path: Path) -> Path:
    data = tmp_path / "data"
    with Broker(data=data) as broker, WireClient(broker.bootstrap) as client:
        for name in ("t", "u"):
            assert create(client, name, 2) == "none"
    return data


def test_log_directories_with_and_without_topics_are_valid(data: Path, tmp_path: Path) -> None:
    status, text = verify(data)
    assert status == 0
    assert "Read 4 partitions" in text
    assert verify(data / "t-0")[0] == 0
    with Broker(data=tmp_path / "new"):
        assert verify(tmp_path / "new")[0] == 0


def test_other_directories_are_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "named-0").mkdir()
    for directory in (Path("/etc"), tmp_path / "empty"):
        status, text = verify(directory)
        assert status == 1
        assert f"{directory} is not a log directory" in text
    status, text = verify(data.parent)
    assert status == 1
    assert f"Did you mean {data}?" in text


def test_a_malformed_topic_id_is_found(data: Path) -> None:
    (data / "t-1" / "partition.metadata").write_text("nonsense")
    status, text = verify(data)
    assert status == 1
    assert "t-1/partition.metadata is malformed" in text


@pytest.mark.parametrize("with_metadata", [True, False])
def test_a_swapped_topic_id_is_found(data: Path, with_metadata: bool) -> None:
    (data / "t-1" / "partition.metadata").write_bytes((data / "u-0" / "partition.metadata").read_bytes())
    if not with_metadata:
        (data / "metadata.db").unlink()
    before = {path: path.stat().st_mtime_ns for path in data.rglob("*")}
    status, text = verify(data)
    assert status == 1
    assert "t-1/partition.metadata" in text
    assert "remove the file while the broker is down" in text
    assert {path: path.stat().st_mtime_ns for path in data.rglob("*")} == before


def test_exchanged_topic_ids_are_found(data: Path) -> None:
    ids = {name: (data / f"{name}-0" / "partition.metadata").read_bytes() for name in "tu"}
    for name, other in ("tu", "ut"):
        for partition in (0, 1):
            (data / f"{name}-{partition}" / "partition.metadata").write_bytes(ids[other])
    assert "4 problems" in verify(data)[1]


def test_unserved_records_are_found_with_commands_to_restore_them(data: Path) -> None:
    stray = data / "t-0.0123456789abcdef0123456789abcdef-stray"
    (data / "t-0").rename(stray)
    status, text = verify(data)
    assert status == 1
    assert f"mv '{stray}' '{data / 't-0'}'" in text


def test_damaged_metadata_is_found(data: Path) -> None:
    (data / "metadata.db").write_bytes(b"nonsense" * 1000)
    status, text = verify(data)
    assert status == 1
    assert "metadata.db" in text
