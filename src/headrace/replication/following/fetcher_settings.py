"""The settings and the callbacks of a fetcher."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from headrace.replication.following.leader_offsets import OFFSETS_VERSION
from headrace.replication.following.partition import FollowedPartition
from headrace.wire.fetched import FETCH_VERSION, FetchLimits


class FetcherSettings(NamedTuple):
    """`replica.fetch.*`, this broker's id and epoch, and the versions of Fetch and ListOffsets."""

    limits: FetchLimits
    partition_max_bytes: int
    backoff_s: float
    replica_id: int
    replica_epoch: Callable[[], int]
    fetch_version: int = FETCH_VERSION
    offsets_version: int = OFFSETS_VERSION


class Reports(Protocol):
    """Callbacks of the fetcher."""

    def flush(self, partitions: list[FollowedPartition]) -> Awaitable[list[tuple[FollowedPartition, str]]]:
        """Flush logs that `flush.messages` requires to be on disk before the next fetch confirms the append.

        Return the partitions whose logs could not be flushed, with the reasons.
        """

    def failed(self, partition: FollowedPartition, reason: str, /) -> None:
        """Called when the partition is no longer fetched, until its leader epoch changes."""
