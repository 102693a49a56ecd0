"""What the demo knows at one moment, for whoever shows it."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class JobState:
    """One query: the number of its last batch, and the records that it has read and published.

    What it published before its process was restarted is in `earlier_out`.
    """

    batch: int | None = None
    records_in: int = 0
    records_out: int = 0
    earlier_out: int = 0


@dataclass(slots=True, kw_only=True)
class DemoState:
    """`shipped` are lines that the broker has acknowledged; `expected` is how many will come, if that is known."""

    source: str
    bootstrap: str
    data: Path
    expected: int | None
    doing: str = "Spark is starting"
    shipped: int = 0
    jobs: dict[str, JobState] = field(default_factory=dict)
    top_pages: dict[int, dict[str, int | str]] = field(default_factory=dict)
    """By rank."""
    restarts: int = 0

    @property
    def records_out(self) -> int:
        return sum(job.records_out for job in self.jobs.values())

    @property
    def records_in(self) -> int:
        """What the slowest query has read: the others are further."""
        return min((job.records_in for job in self.jobs.values()), default=0)

    @property
    def lag(self) -> int:
        return max(0, self.shipped - self.records_in)
