"""Record which driver runs a job: the one that started it last.

The later driver's transactional id fences an earlier driver that publishes. But the earlier driver may fail before it
publishes, for example because the later driver has written the batch to the checkpoint. If the earlier driver then
restarted the job, it would fence the later one.
"""

import time
import uuid
from collections.abc import Callable
from typing import Final, Protocol

from headrace.pipeline.engine.exactly_once.publishing import FencedError
from headrace.pipeline.errors import PipelineError, TemporaryError

_MOST_FENCED: Final = 3
_WINDOW_S: Final = 600.0
"""A driver that was fenced three times within ten minutes has a competitor, even if it has the claim."""


class FileAccess(Protocol):
    """The file operations that claims need."""

    def read(self, uri: str) -> str | None: ...

    def write(self, uri: str, text: str) -> None: ...


class Claims:
    """The jobs that this driver has started, each in a file `<checkpoints>/drivers/<job>-<version>`."""

    def __init__(self, files: FileAccess, checkpoints: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._files = files
        self._directory = f"{checkpoints.rstrip('/')}/drivers"
        self._driver = uuid.uuid4().hex
        self._claimed: set[str] = set()
        self._clock = clock
        self._fenced: dict[str, list[float]] = {}
        """By job: when it was fenced although this driver has the claim."""

    def claim(self, job: str) -> None:
        """Claim `<job>-<version>` before its first start. Later, raise FencedError if another driver has claimed it."""
        if job not in self._claimed:
            self._files.write(f"{self._directory}/{job}", self._driver)
            self._claimed.add(job)
        elif not self._has(job):
            raise FencedError(job)

    def fenced(self, job: str) -> PipelineError | TemporaryError:
        """Return the error to raise if the producer of a claimed job was fenced.

        If this driver still has the claim, return TemporaryError: the coordinator may have fenced the producer because
        its transaction timed out, or because an earlier request for a producer id was carried out late. But a driver
        with other checkpoints may use the same transactional id. The two would fence each other in turn, so return
        FencedError the third time within ten minutes.
        """
        if not self._has(job):
            return FencedError(job)
        now = self._clock()
        times = [at for at in self._fenced.get(job, []) if at > now - _WINDOW_S]
        self._fenced[job] = [*times, now]
        if len(self._fenced[job]) >= _MOST_FENCED:
            return FencedError(job, "It uses other checkpoints: give one of the two a prefix under [place]")
        return TemporaryError(
            f"the transaction coordinator has fenced the producer of job {job}, but no other driver has claimed it. "
            "The job's last transaction may have taken longer than five minutes"
        )

    def _has(self, job: str) -> bool:
        """Return True unless another driver has claimed the job."""
        return (self._files.read(f"{self._directory}/{job}") or self._driver) == self._driver
