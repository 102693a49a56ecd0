"""The parameters of a generated log, and their limits."""

from dataclasses import dataclass
from typing import Final

from headrace.pipeline.errors import PipelineError

SESSION_GAP_S: Final = 1800
"""A client's requests that are further apart than this are in different sessions."""
LATE_BY_S: Final = (20, 90, 300, 900, 2400, 5400)
"""Delays of late lines: a line arrives when its partition is this many seconds past it in event time."""
MAX_VISITORS: Final = 10_000_000

_VISITORS_PER_RATE: Final = 1440
_NEEDED_PER_RATE: Final = 360
"""Visitors needed for each line/s: after about ten lines, a visitor is away for at least the session gap."""
_DEFAULT_LINES: Final = 100_000
_MAX_PARTITIONS: Final = 100_000
_LAST_START: Final = 4_102_444_800
"""The year 2100, in seconds since the epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The parameters of a log, which determine its bytes. Raises PipelineError for values outside the limits.

    `lines` and `hours` (of event time) both limit the log. `start` is in seconds since the epoch, `rate` in lines per
    second of event time. `late`, `torn` and `duplicates` are shares of the requests; a request has at most one
    of these mishaps. `partitions` is the number of partitions of the topic that receives the lines, keyed by client.
    """

    seed: int = 1
    lines: int | None = None
    hours: float | None = None
    start: int = 1_767_571_200
    rate: float = 2.0
    visitors: int | None = None
    late: float = 0.0
    torn: float = 0.0
    duplicates: float = 0.0
    partitions: int = 1

    def __post_init__(self) -> None:
        for name, share in (("late", self.late), ("torn", self.torn), ("duplicates", self.duplicates)):
            if not 0 <= share <= 1:
                raise PipelineError(f"{name} is {share:g}: give a share between 0 and 1")
        if self.late + self.torn + self.duplicates > 1:
            raise PipelineError("late, torn and duplicates add up to more than 1: a line has at most one of these")
        if (self.lines is not None and self.lines < 1) or (self.hours is not None and not self.hours > 0):
            raise PipelineError("a log has at least one line: give lines or hours above 0")
        if not 1 <= self.partitions <= _MAX_PARTITIONS:
            raise PipelineError(f"partitions is {self.partitions}: give a number from 1 to {_MAX_PARTITIONS:,}")
        if not 0 <= self.start <= _LAST_START:
            raise PipelineError("start is outside the years 1970 to 2099")
        if not 0.01 <= self.rate <= MAX_VISITORS / _VISITORS_PER_RATE:
            raise PipelineError(
                f"rate is {self.rate:g} lines/s: give one from 0.01 to {MAX_VISITORS // _VISITORS_PER_RATE:,}"
            )
        needed = int(self.rate * _NEEDED_PER_RATE) + 1
        if self.visitors is not None and not needed <= self.visitors <= MAX_VISITORS:
            raise PipelineError(
                f"{self.visitors:,} visitors: {self.rate:g} lines/s need from {needed:,} to {MAX_VISITORS:,}, because "
                f"each pauses for more than {SESSION_GAP_S // 60} minutes between sessions. Change visitors or rate."
            )

    @property
    def population(self) -> int:
        return self.visitors or int(self.rate * _VISITORS_PER_RATE) + 20

    @property
    def end(self) -> float:
        """The end of the log in event time, exclusive, in seconds since the epoch; infinity without `hours`."""
        return float("inf") if self.hours is None else self.start + self.hours * 3600

    @property
    def max_lines(self) -> float:
        """The maximum number of lines; infinity if only `hours` limits the log."""
        if self.lines is None:
            return _DEFAULT_LINES if self.hours is None else float("inf")
        return self.lines
