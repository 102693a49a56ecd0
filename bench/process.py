"""What a process costs: CPU seconds and resident memory, read from the kernel."""

import os
import subprocess
from pathlib import Path

_TICKS: int = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads since the process began, in seconds."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.exists():
        # The name in parentheses may hold anything; fields 14 and 15 of the whole line follow it.
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    seconds = 0.0
    for part in _ps(pid, "time").split(":"):
        seconds = 60 * seconds + float(part)
    return seconds


def family_cpu_seconds(pid: int) -> float:
    """As `cpu_seconds`, with those of the processes it has started, ended or not. Linux only."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / _TICKS
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for task in tasks for child in task.read_text().split()]
    return cpu_seconds(pid) + ended + sum(map(cpu_seconds, children))


def resident_bytes(pid: int) -> int:
    """Resident memory now."""
    return _status_field(pid, "VmRSS")


def peak_resident_bytes(pid: int) -> int:
    """The most that was ever resident; where the kernel does not tell, what is resident now."""
    return _status_field(pid, "VmHWM")


def _status_field(pid: int, name: str) -> int:
    status = Path(f"/proc/{pid}/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return int(_ps(pid, "rss")) * 1024


def _ps(pid: int, field: str) -> str:
    return subprocess.run(
        ["ps", "-o", f"{field}=", "-p", str(pid)], check=True, capture_output=True, text=True
    ).stdout.strip()
