"""A file system of a few megabytes, for tests of a full disk."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[Path]:
    """Mount a tmpfs at `directory`. Skips the test if the user may not mount one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount a file system")
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a file system: {mounted.stderr.strip()}")
    try:
        yield directory
    finally:
        # lazily, since files may still be open
        subprocess.run(["umount", "-l", str(directory)], check=True)
