"""Records that were deleted before a job read them."""

from collections.abc import Collection, Mapping
from typing import Final

from headrace.wording import count

_SHOWN: Final = 3


class AcceptedLosses:
    """Topics whose unread records may be lost, because the user accepted that.

    Only records that were deleted before the first check of the topic are accepted. Later losses must be accepted
    again.
    """

    def __init__(self, topics: Collection[str]) -> None:
        self._starts: dict[str, Mapping[int, int] | None] = dict.fromkeys(topics)

    def covers(self, topic: str, starts: Mapping[int, int], lost: Collection[int]) -> bool:
        """Return True if the user has accepted the losses in the partitions `lost`.

        `starts` are the log start offsets of all partitions.
        """
        if topic not in self._starts:
            return False
        first = self._starts[topic]
        if first is None:
            self._starts[topic] = first = starts
        return all(starts[partition] <= first.get(partition, -1) for partition in lost)


def described(topic: str, lost: Mapping[int, range]) -> str:
    """Describe the lost offsets of at most three partitions."""
    found = [f"{topic}-{at} offsets {offsets.start} to {offsets.stop - 1}" for at, offsets in sorted(lost.items())]
    more = len(found) - _SHOWN
    return ", ".join(found[:_SHOWN]) + (f" and {count(more, 'more partition')}" if more > 0 else "")
