"""The start command: time and memory to the first answer, output, and exits."""

import compileall
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import crc32c
import kio
import pytest
import uvloop

import headrace
from tests.support.broker_process import API_VERSIONS_REQUEST
from tests.support.ports import free_port
from tests.support.speed import python_processes

START_SHARE = 2.6
"""The CPU time of a start, relative to that of a Python process (`tests.support.speed`). It is 1.9; a client library
that is loaded, too, adds 0.9."""
START_MEGABYTES = 45


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the packages to byte code, as `pip install` does; uv and editable installs do not."""
    for package in (headrace, kio, crc32c, uvloop):
        assert package.__file__ is not None
        compileall.compile_dir(Path(package.__file__).parent, quiet=1)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    address = f"127.0.0.1:{free_port()}"
    return [sys.executable, "-m", "headrace", "start", "--listen", address, "--data", str(tmp_path / "data")]


@contextlib.contextmanager
def running(command: list[str], stdin: int | None = None) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def cost_of_first_answer(command: list[str], port: int) -> tuple[float, float]:
    """Return CPU seconds from exec to the ApiVersions answer, and resident megabytes then."""
    begin = time.perf_counter()
    with running(command) as process:
        while time.perf_counter() - begin < 60:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(API_VERSIONS_REQUEST)
                assert client.recv(4)
                ticks = sum(map(int, Path(f"/proc/{process.pid}/stat").read_text().split()[13:15]))
                status = Path(f"/proc/{process.pid}/status").read_text()
                return ticks / os.sysconf("SC_CLK_TCK"), int(status.split("VmRSS:")[1].split()[0]) / 1024
    raise AssertionError("no answer within 60 s")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_startup_is_fast_and_small(command: list[str], tmp_path: Path) -> None:
    port = int(command[5].rpartition(":")[2])
    sizes = []

    def start_s() -> float:
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        seconds, megabytes = cost_of_first_answer(command, port)
        sizes.append(megabytes)
        return seconds

    # CPU time, because the machine may be busy; `make bench` measures wall time.
    assert python_processes(start_s, runs=5) < START_SHARE
    assert max(sizes) < START_MEGABYTES


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_prints_its_address_and_stops_on_a_signal(command: list[str], tmp_path: Path, number: int) -> None:
    with running(command) as process:
        assert process.stdout is not None
        banner = [process.stdout.readline() for _ in range(6)]
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)

    assert process.returncode == 0
    assert "Traceback" not in errors
    assert banner[0].startswith("Headrace ")
    fields = {line.split()[0] + line.split()[1][:2]: line for line in banner[1:]}
    assert command[5] in banner[1]
    assert banner[2].split() == ["broker", "id", "0"]
    assert len(banner[3].split()[-1]) == 22, fields
    assert str(tmp_path / "data") in banner[4]
    assert "page cache" in banner[5]
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_until_eof_stops_it_with_its_standard_input(command: list[str]) -> None:
    with running([*command, "--until-eof"], stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        _, errors = process.communicate("a word\n", timeout=20)
    assert process.returncode == 0
    assert "Shutting down" in errors


def test_until_eof_refuses_a_file(command: list[str]) -> None:
    refused = subprocess.run(
        [*command, "--until-eof"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False
    )
    assert refused.returncode == 1
    assert refused.stderr == "headrace: --until-eof needs a pipe or a terminal as standard input\n"


def test_a_port_or_data_directory_in_use_is_reported_in_one_line(command: list[str], tmp_path: Path) -> None:
    def refusal(listen: str, data: Path) -> str:
        others = [*command[:5], listen, "--data", str(data)]
        second = subprocess.run(others, capture_output=True, text=True, timeout=20, check=False)
        assert second.returncode == 1
        assert len(second.stderr.splitlines()) == 1
        return second.stderr

    with running(command) as first:
        assert first.stdout is not None
        first.stdout.readline()
        same_port = refusal(command[5], tmp_path / "other")
        same_data = refusal(f"127.0.0.1:{free_port()}", tmp_path / "data")

    port = command[5].rpartition(":")[2]
    assert same_port.startswith(f"headrace: port {port} is in use on 127.0.0.1: ")
    assert "--listen" in same_port
    assert same_port.count(port) == 1
    assert not (tmp_path / "other").exists()
    assert str(tmp_path / "data") in same_data


@pytest.mark.parametrize("named", ["a file", "below a file", "no access"])
def test_an_unusable_data_directory_is_reported_in_one_line(command: list[str], tmp_path: Path, named: str) -> None:
    file = tmp_path / "file"
    file.touch()
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "data").mkdir()
    data = {"a file": file, "below a file": file / "data", "no access": closed / "data"}[named]
    command[7] = str(data)
    user = None
    if named == "no access" and os.geteuid() == 0:
        user = 65534
        code = "import os, sys; sys.argv = sys.argv[1:]; import headrace.__main__ as m; sys.exit(m.main())"
        # a user other than root may lack access to the installed packages: import them before setuid
        warm = "import headrace.cli.start, headrace.broker.node, headrace.cluster.stores.embedded, sqlite3, uvloop; "
        command = [
            sys.executable,
            "-c",
            f"{warm}{code.replace('import os, sys;', f'import os, sys; os.setuid({user});')}",
        ]
        command += ["headrace", "start", "--listen", "127.0.0.1:0", "--data", str(data)]
    elif named == "no access":
        closed.chmod(0)
    refused = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    closed.chmod(0o700)

    assert refused.returncode == 1
    assert len(refused.stderr.splitlines()) == 1, refused.stderr
    assert str(data) in refused.stderr
    assert ("Permission denied" if named == "no access" else "Not a directory") in refused.stderr
    assert "Errno" not in refused.stderr


def test_an_address_of_another_machine_leaves_no_files(command: list[str], tmp_path: Path) -> None:
    command[5] = "192.0.2.1:9092"
    refused = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert refused.returncode == 1
    assert "192.0.2.1" in refused.stderr
    assert not (tmp_path / "data").exists()


def test_a_configuration_file_for_kafka_is_accepted_and_unknown_keys_reported(
    command: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "process.roles=broker,controller\nnode.id=7\ncontroller.quorum.voters=7@localhost:9093\n"
        "controller.listener.names=CONTROLLER\nnum.partitions = 5\nlog.retention.hours=24\n"
        "offsets.topic.replication.factor=1\nmy.plugin.depth=3\n"
    )
    with running([*command, "--config", str(file)]) as process:
        assert process.stdout is not None
        banner = [process.stdout.readline() for _ in range(6)]
        process.terminate()
        _, errors = process.communicate(timeout=20)
    assert banner[2].split() == ["broker", "id", "7"]
    assert any("WARNING" in line and "my.plugin.depth" in line for line in errors.splitlines())


def test_it_needs_no_configuration(tmp_path: Path) -> None:
    """Use all defaults except the port, which may be taken."""
    command = [sys.executable, "-m", "headrace", "start", "--listen", f"127.0.0.1:{free_port()}"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("Headrace ")
        assert (tmp_path / "headrace-data" / "meta.properties").exists()
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=20)
