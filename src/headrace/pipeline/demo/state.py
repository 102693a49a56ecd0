"""The state of the demo, for its view."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class JobState:
    """Progress of one query. `earlier_out` counts records published before its process was restarted."""

    batch: int | None = None
    records_in: int = 0
    records_out: int = 0
    earlier_out: int = 0


@dataclass(slots=True, kw_only=True)
class DemoState:
    """`shipped` counts acknowledged lines; `expected` is the total number of lines, if known."""

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
        """Records read by the slowest query."""
        return min((job.records_in for job in self.jobs.values()), default=0)

    @property
    def lag(self) -> int:
        return max(0, self.shipped - self.records_in)
