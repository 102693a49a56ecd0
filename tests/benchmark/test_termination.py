"""A terminated benchmark stops its brokers."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.kafka_process import kafka_jars
from tests.support.waiting import wait_for


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to find child processes")
@pytest.mark.parametrize(
    ("number", "measured"),
    [
        (signal.SIGTERM, ["bench", "--headrace-only", "--quick", "--only", "small batches"]),
        (signal.SIGINT, ["bench", "--headrace-only", "--groups"]),
        (signal.SIGTERM, ["bench.pipeline", "--lines", "1000000"]),
    ],
    ids=["producing", "groups", "the pipeline"],
)
def test_a_terminated_benchmark_stops_its_brokers(tmp_path: Path, number: signal.Signals, measured: list[str]) -> None:
    kafka_jars()
    command = [sys.executable, "-m", *measured, "--dir", str(tmp_path)]
    bench = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        brokers = wait_for(lambda: _brokers(bench.pid), "a broker", timeout_s=60)
        bench.send_signal(number)
        _, errors = bench.communicate(timeout=60)
    finally:
        bench.kill()
    assert bench.returncode == 128 + number
    assert b"Traceback" not in errors
    assert not [pid for pid in brokers if Path(f"/proc/{pid}").exists()]
    assert list(tmp_path.iterdir()) == []


def _brokers(pid: int) -> list[str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [child for child in children if b"headrace" in Path(f"/proc/{child}/cmdline").read_bytes()]
