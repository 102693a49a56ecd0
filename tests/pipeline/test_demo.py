"""`headrace demo` from end to end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pipeline.conftest import demo_totals, run_demo
from tests.pipeline.reading import read_all
from tests.support.broker_process import BrokerProcess
from tests.support.waiting import wait_for


def test_the_totals_of_a_real_log_are_exact(access_log: Path) -> None:
    totals = demo_totals("--input", str(access_log))
    top_pages = totals.pop("top_pages")
    assert totals == {
        "requests": 10_000,
        "clients": 1_753,
        "status": {"200": 9126, "206": 45, "301": 164, "304": 445, "403": 2, "404": 213, "416": 2, "500": 3},
        "days": {"2015-05-17": 1632, "2015-05-18": 2893, "2015-05-19": 2896, "2015-05-20": 2579},
        "rejected": 0,
    }
    assert len(top_pages) == 10
    assert top_pages[0] == {"page": "/", "views": 572, "requests": 575}


MALFORMED = {
    "": "the line is empty",
    "a line from somewhere else": "no time as [dd/Mon/yyyy:hh:mm:ss +zzzz]",
    '192.0.2.7 - - [31/Feb/2026:10:00:00 +0000] "GET / HTTP/1.1" 200 1': "the time does not exist in the calendar",
    '192.0.2.7 - - [17/May/2026:10:00:00 +0000] "GET / HTTP/1.1': "the quoted request does not end",
}


def test_malformed_lines_are_rejected_with_the_reason(broker: BrokerProcess, tmp_path: Path) -> None:
    good = '192.0.2.1 - - [17/May/2026:10:00:00 +0000] "GET /a HTTP/1.1" 200 17'
    log = tmp_path / "access.log"
    # The last request is too late for the watermark, and counted all the same.
    late = good.replace("10:00:00", "09:00:00")
    log.write_text("\n".join([good, *MALFORMED, good, late]) + "\n")
    totals = demo_totals("--input", str(log), "--bootstrap", broker.bootstrap, "--prefix", "t.")
    assert totals["requests"] == 3
    assert totals["rejected"] == len(MALFORMED)
    assert totals["top_pages"] == [{"page": "/a", "views": 3, "requests": 3}]
    rejected = read_all(broker.bootstrap, "t.access-log.rejected")
    assert {record.value["line"]: record.value["reason"] for record in rejected} == MALFORMED
    assert {record.value["line"]: record.headers["reason"] for record in rejected} == MALFORMED
    assert len(rejected) == len(MALFORMED)
    # A second run would count the lines of the first.
    again = run_demo("--input", str(log), "--bootstrap", broker.bootstrap, "--prefix", "t.", "--json")
    assert again.returncode == 1
    assert "already has 7 records" in again.stderr


def test_ctrl_c_ends_the_broker_and_spark(tmp_path: Path) -> None:
    data = tmp_path / "demo"
    command = [sys.executable, "-m", "headrace", "demo", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        try:
            wait_for(lambda: "Spark" in _log(data), "Spark's first log line", timeout_s=120)
        finally:
            demo.send_signal(signal.SIGINT)
            output = demo.communicate(timeout=60)[0]
    assert demo.returncode == 130
    assert "Traceback" not in output
    assert _processes_of(data) == []


def test_a_missing_input_is_reported() -> None:
    result = run_demo("--input", "/no/such/access.log")
    assert result.returncode == 1
    assert "cannot read the access log /no/such/access.log" in " ".join(result.stderr.split())


def test_a_directory_in_use_is_refused(tmp_path: Path, access_log: Path) -> None:
    (tmp_path / "something").touch()
    result = run_demo("--input", str(access_log), "--data", str(tmp_path))
    assert result.returncode == 1
    assert "is not empty" in " ".join(result.stderr.split())


def test_an_unreachable_broker_is_reported(access_log: Path) -> None:
    result = run_demo("--input", str(access_log), "--bootstrap", "127.0.0.1:1", "--json")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "no broker answers at 127.0.0.1:1" in " ".join(result.stderr.split())


@pytest.mark.parametrize("java", ["missing", "old"])
def test_an_unusable_java_is_reported_with_the_version_to_install(tmp_path: Path, java: str) -> None:
    home = tmp_path / "java"
    if java == "old":
        program = home / "bin" / "java"
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
        program.chmod(0o755)
    command = [sys.executable, "-m", "headrace", "demo"]
    environment = {**os.environ, "JAVA_HOME": str(home)}
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    output = " ".join(result.stderr.split())
    assert result.returncode == 1
    assert ("does not exist" if java == "missing" else "is Java 11") in output
    assert "Install a Java 17 runtime" in output


def _log(data: Path) -> str:
    log = data / "logs" / "spark.log"
    return log.read_text(errors="replace") if log.exists() else ""


def _processes_of(data: Path) -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(data) in line]
