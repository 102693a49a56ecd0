import os
import threading
from pathlib import Path

import pytest

from headrace.cli.start import durability, settings_text
from headrace.config import BrokerConfig
from tests.support.refusals import wrong_reasons


def test_a_binary_or_huge_file_is_refused() -> None:
    reasons = {
        "/bin/true": "it is not a text file: it contains zero bytes",
        "/dev/zero": "larger than 1 MiB",
    }
    assert wrong_reasons(reasons, settings_text, OSError) == {}


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


def test_the_first_lines_say_when_records_are_on_disk() -> None:
    interval_ms, check_ms, messages = (
        f"log.flush.{name}" for name in ("interval.ms", "scheduler.interval.ms", "interval.messages")
    )
    assert "the operating system decides" in durability(BrokerConfig({}))
    assert "fsync every 1000 ms" in durability(BrokerConfig({check_ms: "1000"}))
    assert "fsync every 50 ms" in durability(BrokerConfig({check_ms: "1000", interval_ms: "50"}))
    assert "fsync every 7 records" in durability(BrokerConfig({messages: "7"}))
    assert "every record is on disk before it is acknowledged" in durability(BrokerConfig({messages: "1"}))
