"""Only one process owns a log directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import KafkaError
from headrace.storage.dirs.log_dirs import LogDirs

_OPEN = (
    "import sys; from pathlib import Path; from headrace.storage.dirs.log_dirs import LogDirs\n"
    "LogDirs.open([Path(sys.argv[1])], broker_id=0)"
)


def test_another_process_is_refused_even_after_a_second_attempt_in_this_one(tmp_path: Path) -> None:
    dirs = LogDirs.open([tmp_path], broker_id=0)
    with pytest.raises(KafkaError):
        LogDirs.open([tmp_path], broker_id=0)

    command = [sys.executable, "-c", _OPEN, str(tmp_path)]
    other = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert other.returncode == 1
    assert f"{tmp_path} is in use by another broker" in other.stderr
    dirs.close({})
