"""Paths of a pipeline's tables and checkpoints."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One directory for both, because a checkpoint must be resumed only with its own tables."""

    directory: Path

    def table(self, name: str) -> str:
        return str(self.directory / "tables" / name)

    def checkpoint(self, job: str) -> str:
        return str(self.directory / "checkpoints" / job)
