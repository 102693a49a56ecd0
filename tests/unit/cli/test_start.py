import os
import threading
from pathlib import Path

import pytest

from headrace.cli.start import durability, settings_text
from headrace.config import BrokerConfig


def test_a_binary_file_is_refused() -> None:
    with pytest.raises(OSError, match="it is not a text file: it contains zero bytes"):
        settings_text("/bin/true")


def test_a_huge_settings_file_is_refused() -> None:
    with pytest.raises(OSError, match="larger than 1 MiB"):
        settings_text("/dev/zero")


def test_a_pipe_without_a_writer_times_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no data from this pipe"):
        settings_text(str(tmp_path / "pipe"), timeout_s=0.01)


def test_settings_can_be_read_from_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("node.id=3\n",))
    writer.start()
    assert settings_text(str(pipe)) == "node.id=3\n"
    writer.join()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "the operating system decides"),
        ({"log.flush.scheduler.interval.ms": "1000"}, "fsync every 1000 ms"),
        ({"log.flush.scheduler.interval.ms": "1000", "log.flush.interval.ms": "50"}, "fsync every 50 ms"),
        ({"log.flush.interval.messages": "7"}, "fsync every 7 records"),
        ({"log.flush.interval.messages": "1"}, "every record is on disk before it is acknowledged"),
    ],
)
def test_the_first_lines_say_when_records_are_on_disk(settings: dict[str, str], words: str) -> None:
    assert words in durability(BrokerConfig(settings))
