"""`headrace demo` from end to end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.pipeline.conftest import demo_totals, run_demo
from tests.pipeline.reading import latest, read_committed
from tests.pipeline.topics import Topics
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for

DAYS_LATE = '192.0.2.1 - - [17/May/2015:10:00:00 +0000] "GET /late HTTP/1.1" 200 17'
MALFORMED = {
    "": "the line is empty",
    "a line from somewhere else": "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]",
    '192.0.2.7 - - [31/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1': "the time does not exist in the calendar",
    '192.0.2.7 - - [17/May/2026:10:00:00 +0000] "GET / HTTP/1.1': "the quoted request does not end",
}


@pytest.mark.slow
def test_a_demo_stopped_with_ctrl_c_continues_and_has_the_exact_totals(access_log: Path, tmp_path: Path) -> None:
    log, data = tmp_path / "access.log", tmp_path / "demo"
    lines = [*MALFORMED, DAYS_LATE]
    log.write_bytes(access_log.read_bytes() + "".join(line + "\n" for line in lines).encode())
    arguments = ["--input", str(log), "--data", str(data), "--prefix", "t.", "--set", "top_pages.count=7"]
    command = [sys.executable, "-m", "headrace", "demo", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        try:
            wait_for(lambda: _batch(data, "events") is not None, "the first events", timeout_s=300)
        finally:
            demo.send_signal(signal.SIGINT)
            output = demo.communicate(timeout=60)[0]
    assert demo.returncode == 130
    assert "Traceback" not in output
    assert _processes_of(data) == []

    totals = demo_totals(*arguments)
    assert {key: totals[key] for key in ("requests", "clients", "status", "days", "rejected", "page_views")} == {
        "requests": 10_001,
        "clients": 1_754,
        "status": {"200": 9127, "206": 45, "301": 164, "304": 445, "403": 2, "404": 213, "416": 2, "500": 3},
        "days": {"2015-05-17": 1633, "2015-05-18": 2893, "2015-05-19": 2896, "2015-05-20": 2579},
        "rejected": len(MALFORMED),
        "page_views": {"views": 4051, "pages": 806},
    }
    rejected = {row["reason"]: row["count"] for row in totals["quarantined"] if row["job"] == "events"}
    assert rejected == dict.fromkeys(MALFORMED.values(), 1)
    assert len(totals["top_pages"]) == 7
    assert totals["top_pages"][0] == {"page": "/", "views": 572}
    with BrokerProcess(data / "broker") as broker:
        published = latest(read_committed(broker.bootstrap, "t.top-pages"))
    assert [published[str(rank)] for rank in range(1, 8)] == [
        {"rank": rank, **row} for rank, row in enumerate(totals["top_pages"], 1)
    ]


def test_a_topic_in_use_is_refused(broker: BrokerProcess, access_log: Path) -> None:
    Topics(broker.bootstrap).create("access-log", partitions=1, config={})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("access-log", DAYS_LATE.encode())
    assert producer.flush(10) == 0
    result = run_demo("--input", str(access_log), "--bootstrap", broker.bootstrap, "--json")
    assert result.returncode == 1
    assert "already has 1 records" in result.stderr


def test_a_missing_input_is_reported() -> None:
    result = run_demo("--input", "/no/such/access.log")
    assert result.returncode == 1
    assert "cannot read the access log /no/such/access.log" in " ".join(result.stderr.split())


def test_a_wrong_parameter_is_reported_before_anything_starts(access_log: Path, tmp_path: Path) -> None:
    data = tmp_path / "demo"
    result = run_demo("--input", str(access_log), "--data", str(data), "--set", "sessions.gap=soon")
    assert result.returncode == 1
    assert "parameter gap must be an interval such as '10 minutes'" in " ".join(result.stderr.split())
    assert not list(data.iterdir())


def test_an_unreachable_broker_is_reported(access_log: Path) -> None:
    result = run_demo("--input", str(access_log), "--bootstrap", "127.0.0.1:1", "--json")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "no broker answers at 127.0.0.1:1" in " ".join(result.stderr.split())


def test_an_unusable_java_is_reported_with_the_version_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "demo"]
    environment = {**os.environ, "JAVA_HOME": str(tmp_path / "java")}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    output = " ".join(result.stderr.split())
    assert result.returncode == 1
    assert "does not exist" in output
    assert "Install a Java 17 runtime" in output


def _batch(data: Path, job: str) -> int | None:
    status = data / "lake" / "_checkpoints" / "status" / f"{job}.json"
    batch: int | None = json.loads(status.read_text())["batch"] if status.exists() else None
    return batch


def _processes_of(data: Path) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(data) in line]
