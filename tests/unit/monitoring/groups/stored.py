"""Read back what the history has stored."""

from typing import NamedTuple

from headrace.monitoring.groups.store import HistoryStore


class Samples(NamedTuple):
    """Samples of one group and topic: the times of all samples, and the changes."""

    ticks: list[int]
    changes: list[tuple[int, bytes]]


def samples(store: HistoryStore, group_id: str, topic: str, from_ms: int, to_ms: int) -> Samples:
    """Return the samples between the two times, and the last change before them."""
    before = store.last_change(group_id, topic, -1, from_ms - 1)
    ticks = store.ticks(from_ms, to_ms, 10**9)
    within = [store.last_change(group_id, topic, tick - 1, tick) for tick in ticks]
    return Samples(ticks, [(change.at_ms, change.data) for change in (before, *within) if change is not None])
