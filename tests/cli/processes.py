"""`headrace` in separate processes."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from subprocess import PIPE
from typing import IO


def start(
    environment: Mapping[str, str], *words: str, stdout: int | IO[str] = PIPE, stderr: int | IO[str] = PIPE
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "headrace", *words]
    return subprocess.Popen(command, stdin=PIPE, stdout=stdout, stderr=stderr, env=dict(environment), text=True)


@contextmanager
def running(environment: Mapping[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    process = start(environment, *words)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def write_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
