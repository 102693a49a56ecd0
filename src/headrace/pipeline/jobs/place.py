"""Where a pipeline keeps its tables and checkpoints."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One directory for both, so that nobody resumes a checkpoint beside tables it does not belong to."""

    directory: Path

    def table(self, name: str) -> str:
        return str(self.directory / "tables" / name)

    def checkpoint(self, job: str) -> str:
        return str(self.directory / "checkpoints" / job)
