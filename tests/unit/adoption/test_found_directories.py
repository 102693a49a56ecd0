import errno
import os
from pathlib import Path

import pytest

from headrace.adoption.found_directories import metadata_file, plan_adoption
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.storage.dirs.log_dirs import LogDirs


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a", tmp_path / "b"]
    for directory in found:
        directory.mkdir()
    return found


def test_metadata_is_found_in_any_directory_and_new_metadata_goes_into_the_first(directories: list[Path]) -> None:
    assert metadata_file(directories) == directories[0] / "metadata.db"
    (directories[1] / "metadata.db").touch()
    assert metadata_file(directories) == directories[1] / "metadata.db"
    assert metadata_file(directories[::-1]) == directories[1] / "metadata.db"


def test_metadata_in_two_directories_is_refused(directories: list[Path]) -> None:
    for directory in directories:
        (directory / "metadata.db").touch()
    with pytest.raises(KafkaError, match=r"a/metadata\.db and in .*b/metadata\.db: move away") as raised:
        metadata_file(directories)
    assert raised.value.code is ErrorCode.kafka_storage_error


def test_a_directory_whose_disk_fails_prevents_the_adoption(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, directory in enumerate(directories):
        (directory / f"t-{number}").mkdir()
    dirs = LogDirs.survey(directories, broker_id=0)

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("headrace.storage.dirs.found_partitions.check_partition", fail)
    with pytest.raises(KafkaError, match=r"cannot read .*a: .*Input/output error and .*b: .*Input/output error"):
        plan_adoption(dirs, None, BrokerConfig())
    dirs.close({})
