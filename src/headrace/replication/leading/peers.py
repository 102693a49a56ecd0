"""The services of the cluster that a leader uses."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from headrace.replication.leading.isr_changes import Answer, IsrChange


class AlterIsr(Protocol):
    """ISR changes, which only the controller can make."""

    def submit(self, change: IsrChange, done: Callable[[Answer], None]) -> None:
        """Send a change to the controller, and call `done` later with its answer, on the event loop."""


class Peers(NamedTuple):
    """The cluster as leaders on this broker see it."""

    broker_id: int
    is_alive: Callable[[int], bool]
    """False for a broker that is not registered."""
    max_lag_ms: Callable[[], int]
    """`replica.lag.time.max.ms`."""
    now_ms: Callable[[], int]
    """A monotonic clock."""
    alter_isr: AlterIsr
