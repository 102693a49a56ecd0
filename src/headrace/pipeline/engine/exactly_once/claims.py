"""Record which driver runs a job: the one that started it last.

The later driver's transactional id fences an earlier driver that publishes. But the earlier driver may fail before it
publishes, for example because the later driver has written the batch to the checkpoint. If the earlier driver then
restarted the job, it would fence the later one.
"""

import uuid
from typing import Protocol

from headrace.pipeline.engine.exactly_once.publishing import FencedError


class FileAccess(Protocol):
    """The file operations that claims need."""

    def read(self, uri: str) -> str | None: ...

    def write(self, uri: str, text: str) -> None: ...


class Claims:
    """The jobs that this driver has started, each in a file `<checkpoints>/drivers/<job>-<version>`."""

    def __init__(self, files: FileAccess, checkpoints: str) -> None:
        self._files = files
        self._directory = f"{checkpoints.rstrip('/')}/drivers"
        self._driver = uuid.uuid4().hex
        self._claimed: set[str] = set()

    def claim(self, job: str) -> None:
        """Claim `<job>-<version>` before its first start. Later, raise FencedError if another driver has claimed it."""
        file = f"{self._directory}/{job}"
        if job not in self._claimed:
            self._files.write(file, self._driver)
            self._claimed.add(job)
        elif (self._files.read(file) or self._driver) != self._driver:
            raise FencedError(job)
