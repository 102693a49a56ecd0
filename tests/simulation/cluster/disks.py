"""The disks of simulated brokers, which lose unsynced data when the power fails."""

from contextlib import ExitStack
from pathlib import Path
from random import Random

from tests.crashes.disk import Disk, put, record


class Disks:
    """One directory per broker, and another one after each power failure. `close` stops the recording."""

    def __init__(self, directory: Path, random: Random, *, recorded: bool) -> None:
        """Without `recorded`, files are plain files, which is faster, but the power must not fail."""
        self._directory = directory
        self._random = random
        self._is_recorded = recorded
        self._disks: dict[str, Disk] = {}
        self._failures: dict[str, int] = {}
        self._recording = ExitStack()

    def root(self, host: str) -> Path:
        """Return the existing directory of a broker."""
        root = self._directory / f"{host}-{self._failures.setdefault(host, 0)}"
        if not root.exists():
            root.mkdir()
            self._boot(host).write_text("0")
            if self._is_recorded:
                self._record(host, Disk({}), root)
        return root

    def boot_id(self, host: str) -> Path | None:
        """Return the file with the id of the kernel's start; None for the real one."""
        return self._boot(host) if self._is_recorded else None

    def fail(self, host: str) -> None:
        """Replace the directory by one that a power failure may leave."""
        disk = self._disks[host]
        files = disk.after_power_loss(len(disk.journal), self._random)
        self._failures[host] += 1
        self._boot(host).write_text(str(self._failures[host]))
        root = self._directory / f"{host}-{self._failures[host]}"
        put(files, root)
        self._record(host, Disk(files), root)

    def close(self) -> None:
        self._recording.close()

    def _boot(self, host: str) -> Path:
        return self._directory / f"boot-{host}"

    def _record(self, host: str, disk: Disk, root: Path) -> None:
        self._disks[host] = disk
        self._recording.enter_context(record(disk, root))
