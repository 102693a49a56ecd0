"""What members of the consumer protocol subscribe to: topics by name, and by regular expression (KIP-848)."""

import hashlib
from collections.abc import Iterable
from typing import Protocol


class Topics(Protocol):
    """What topics there are."""

    @property
    def version(self) -> int:
        """Grows whenever a topic or a partition is added or removed."""

    def matching(self, regex: str) -> tuple[str, ...] | None:
        """The topics whose whole name the expression matches, sorted; None where that takes longer: ask again."""

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        """Id (16 bytes) and number of partitions; None where it does not exist."""

    def name_of(self, topic_id: bytes) -> str | None:
        """None where it does not exist."""


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A signed 64-bit number that changes when one of the topics does; 0 where none of them exists."""
    existing = [(name, description) for name in sorted(names) if (description := topics.describe(name)) is not None]
    if not existing:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, (topic_id, partition_count) in existing:
        digest.update(b"%b\0%b%d\0" % (name.encode(), topic_id, partition_count))
    return int.from_bytes(digest.digest(), "big", signed=True)
