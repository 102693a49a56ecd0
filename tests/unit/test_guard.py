"""`tests/unit/conftest.py` fails tests that start a process or listen on a port."""

import asyncio
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable

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
