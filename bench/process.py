"""CPU time and memory of a process, from the kernel."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path

_TICKS: int = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads since the process started, in seconds."""
    if Path("/proc/self/stat").exists():
        user, system, _, _ = _ticks(pid)
        return (user + system) / _TICKS
    seconds = 0.0
    for part in _ps(pid, "time").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def family_cpu_seconds(pid: int) -> float:
    """Return `cpu_seconds` of a process and its children, also those that have exited. Linux only."""
    seconds = 0.0
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    # A child that exits during this loop is counted below, among the exited ones.
    for child in [int(child) for task in tasks for child in task.read_text().split()]:
        with suppress(FileNotFoundError, ProcessLookupError):
            seconds += sum(_ticks(child)[:2]) / _TICKS
    return seconds + sum(_ticks(pid)) / _TICKS


def _ticks(pid: int) -> tuple[int, int, int, int]:
    """Return user and system time of a process, and those of its exited children, in clock ticks."""
    # The name in parentheses may contain anything; fields 14 to 17 of the line follow it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, children_user, children_system = map(int, fields[11:15])
    return user, system, children_user, children_system


def resident_bytes(pid: int) -> int:
    return _status_field(pid, "VmRSS")


def peak_resident_bytes(pid: int) -> int:
    """Return the peak resident memory, or outside Linux the current resident memory."""
    return _status_field(pid, "VmHWM")


def _status_field(pid: int, name: str) -> int:
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise ProcessLookupError(f"process {pid} has ended")
    return int(_ps(pid, "rss")) * 1024


def _ps(pid: int, field: str) -> str:
    return subprocess.run(
        ["ps", "-o", f"{field}=", "-p", str(pid)], check=True, capture_output=True, text=True
    ).stdout.strip()
