"""Run commands on a terminal of their own, 80 columns wide."""

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping


def shown(
    environment: Mapping[str, str],
    *words: str,
    typed: str = "",
    status: int = 0,
    interrupt_at: bytes = b"",
) -> list[str]:
    """Return the final lines on the terminal, without colours and input; send Ctrl-C at `interrupt_at`."""
    seen = styled(environment, *words, typed=typed, status=status, interrupt_at=interrupt_at)
    return re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen).decode().splitlines()


def styled(
    environment: Mapping[str, str],
    *words: str,
    typed: str = "",
    status: int = 0,
    interrupt_at: bytes = b"",
) -> bytes:
    """Return the bytes sent to the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    attributes = termios.tcgetattr(theirs)
    attributes[3] &= ~termios.ECHO
    termios.tcsetattr(theirs, termios.TCSANOW, attributes)
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    seen = b""
    while chunk := _read(ours):
        seen += chunk
        if interrupt_at and interrupt_at in seen:
            time.sleep(0.2)  # Python may lose a signal that arrives just before a read from a terminal
            process.send_signal(signal.SIGINT)
            interrupt_at = b""
    os.close(ours)
    assert process.wait(timeout=30) == status, seen
    return seen


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # on Linux, the other end is closed
        return b""
