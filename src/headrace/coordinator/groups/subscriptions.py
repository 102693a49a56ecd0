"""The topics that members of the consumer protocol may subscribe to (KIP-848)."""

import hashlib
from collections.abc import Iterable
from typing import Protocol


class Topics(Protocol):
    """The topics of the cluster."""

    @property
    def version(self) -> int:
        """Increases when a topic or a partition is added or removed."""

    def matching(self, regex: str) -> tuple[str, ...] | None:
        """Return the topics whose whole name matches, sorted; None if matching takes longer: retry later."""

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        """Return the topic's id (16 bytes) and number of partitions; None if it does not exist."""

    def name_of(self, topic_id: bytes) -> str | None:
        """Return the topic's name; None if it does not exist."""


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """Return a signed 64-bit hash of the topics' ids and partition counts; 0 if none of them exists."""
    existing = [(name, description) for name in sorted(names) if (description := topics.describe(name)) is not None]
    if not existing:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, (topic_id, partition_count) in existing:
        digest.update(b"%b\0%b%d\0" % (name.encode(), topic_id, partition_count))
    return int.from_bytes(digest.digest(), "big", signed=True)
