"""The state of the demo, for its view."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True, kw_only=True)
class JobState:
    """Progress of one job."""

    state: str = "starting"
    batch: int | None = None
    rows_per_s: float = 0.0
    """Rate of the last batch."""
    lines: int = 0
    """Processed lines: the sum of the offsets that the job's group has committed."""
    latency_s: float | None = None
    """Median time from the acknowledgement of the last batch's lines to the commit of their offsets."""
    published: int | None = None
    """Records in the result topic; None if the job has none."""
    quarantined: int = 0
    failure: str | None = None


@dataclass(slots=True, kw_only=True)
class DemoState:
    """The state of the demo, for its view.

    `shipped` counts acknowledged lines; `expected` is the total number of lines, if known.
    """

    source: str
    bootstrap: str
    data: Path
    lake: str
    expected: int | None
    doing: str = "Spark is starting"
    shipped: int = 0
    shipped_per_s: float = 0.0
    resumed: int = 0
    """Lines that an earlier run had shipped."""
    jobs: dict[str, JobState] = field(default_factory=dict)
    top_pages: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By rank."""
    restarts: int = 0

    @property
    def published(self) -> int:
        return sum(job.published or 0 for job in self.jobs.values())

    @property
    def processed(self) -> int:
        """Lines processed by the slowest job."""
        return min((job.lines for job in self.jobs.values()), default=0)

    @property
    def lag(self) -> int:
        return max(0, self.shipped - self.processed)

    @property
    def latency_s(self) -> float | None:
        """Latency of the slowest job."""
        return max((job.latency_s for job in self.jobs.values() if job.latency_s is not None), default=None)
