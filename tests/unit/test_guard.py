"""`tests/unit/conftest.py` fails tests that start a process or listen on a port, and separates them from others."""

import asyncio
import logging
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest


def _serve() -> None:
    async def serve() -> None:
        await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)

    asyncio.run(serve())


@pytest.mark.parametrize(
    "forbidden",
    [
        lambda: subprocess.run([sys.executable, "--version"], check=True),
        lambda: multiprocessing.get_context("fork").Process(target=print).start(),
        lambda: os.system("true"),
        lambda: socket.create_server(("127.0.0.1", 0)),
        _serve,
    ],
    ids=["subprocess", "fork", "shell", "socket", "asyncio"],
)
def test_processes_and_open_ports_fail_a_unit_test(forbidden: Callable[[], object]) -> None:
    with pytest.raises(pytest.fail.Exception, match="a unit test"):
        forbidden()


def test_a_local_socket_pair_is_allowed() -> None:
    for end in socket.socketpair():
        end.close()


def test_log_lines_of_a_broker_that_other_tests_share_are_not_captured(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    log = logging.getLogger(__name__)

    def log_in_two_threads() -> None:
        log.warning("A line of another test")
        further = threading.Thread(target=log.warning, args=("A line of its thread",))
        further.start()
        further.join()

    conftest = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    assert conftest is not None
    other = threading.Thread(target=log_in_two_threads)
    conftest._guard.others.add(other)
    other.start()
    other.join()
    log.warning("A line of this test")
    assert caplog.messages == ["A line of this test"]
