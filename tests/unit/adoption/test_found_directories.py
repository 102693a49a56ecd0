from pathlib import Path

import pytest

from headrace.adoption.found_directories import metadata_file
from headrace.errors import ErrorCode, KafkaError


@pytest.fixture
def directories(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a", tmp_path / "b"]
    for directory in found:
        directory.mkdir()
    return found


def test_new_metadata_goes_into_the_first_directory(directories: list[Path]) -> None:
    assert metadata_file(directories) == directories[0] / "metadata.db"


def test_metadata_is_found_in_any_directory(directories: list[Path]) -> None:
    (directories[1] / "metadata.db").touch()
    assert metadata_file(directories) == directories[1] / "metadata.db"
    assert metadata_file(directories[::-1]) == directories[1] / "metadata.db"


def test_metadata_in_two_directories_is_refused(directories: list[Path]) -> None:
    for directory in directories:
        (directory / "metadata.db").touch()
    with pytest.raises(KafkaError, match=r"a/metadata\.db and in .*b/metadata\.db: move away") as raised:
        metadata_file(directories)
    assert raised.value.code is ErrorCode.kafka_storage_error
