"""Progress of a reassignment: share copied, rate and time left. Pure."""

from collections import deque
from typing import Final

_WINDOW_S: Final = 15.0
"""The rate is the average over this time."""


class Progress:
    """Tracks the bytes left to copy."""

    def __init__(self) -> None:
        self.total = 0
        """The largest number of bytes left that was observed; it grows if producers add records."""
        self.left = 0
        self._seen: deque[tuple[float, int]] = deque()

    def observe(self, now_s: float, left: int) -> None:
        self.left = left
        self.total = max(self.total, left)
        self._seen.append((now_s, left))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= _WINDOW_S:
            self._seen.popleft()

    @property
    def rate(self) -> float:
        """Bytes per second, 0 if nothing is copied."""
        (first_s, first), (last_s, last) = self._seen[0], self._seen[-1]
        return max(first - last, 0) / (last_s - first_s) if last_s > first_s else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end; None if nothing is being copied."""
        return self.left / self.rate if self.rate else None
