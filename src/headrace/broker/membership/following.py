"""The fetchers of a member: they copy the partitions that this broker follows."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

from headrace.broker.membership.throttles import configure_throttle
from headrace.client.link import Link
from headrace.clock import SYSTEM, now_ms
from headrace.cluster.membership.inter_broker import inter_broker_versions
from headrace.config import BrokerConfig
from headrace.errors import KafkaError
from headrace.replication.following.fetch_figures import FetcherFigures
from headrace.replication.following.fetcher import Fetcher
from headrace.replication.following.fetcher_settings import FetcherSettings
from headrace.replication.following.fetchers import Fetchers
from headrace.replication.following.partition import FollowedPartition
from headrace.replication.throttle import ReplicationThrottle
from headrace.types import TopicPartition
from headrace.wire.fetched import FetchLimits

THROTTLED_REPLICAS: Final = "follower.replication.throttled.replicas"
"""Topic setting with the replicas that followers throttle."""

log = logging.getLogger(__name__)


class MemberFetchers:
    """Copies partitions from their leaders, with fetchers for each leader.

    `link_to` returns a link for a broker id and a client id, `address_of` the address of a live broker.
    `broker_epoch` returns this broker's epoch.
    """

    def __init__(
        self,
        config: BrokerConfig,
        executor: Executor,
        *,
        link_to: Callable[[int, str], Link],
        address_of: Callable[[int], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
    ) -> None:
        self._config = config
        self._versions = inter_broker_versions(config.inter_broker_protocol_version)
        self._executor = executor
        self._link_to = link_to
        self._address_of = address_of
        self._broker_epoch = broker_epoch
        self._throttle = ReplicationThrottle(
            window_count=config.replication_quota_window_num, window_s=config.replication_quota_window_size_seconds
        )
        self._fetchers = Fetchers(self._create, per_leader=config.num_replica_fetchers)
        self.failures: set[TopicPartition] = set()
        """Partitions that are no longer fetched because of an error."""
        self.is_leaving = False
        """True while this broker stops. It follows no more partitions, because their leaders would wait for it."""

    def follow(self, partitions: Sequence[FollowedPartition]) -> None:
        """Fetch these partitions from their current leaders under their current leader epochs."""
        if self.is_leaving:
            self.forget([partition.topic_partition for partition in partitions])
            return
        self.failures.difference_update(partition.topic_partition for partition in partitions)
        self._throttle.rate = self._config.follower_replication_throttled_rate
        self._fetchers.follow(partitions)

    def forget(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop fetching these partitions. Nothing is appended to their logs after this."""
        self.failures.difference_update(partitions)
        self._fetchers.forget(partitions)

    def configure(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        """Apply the settings of the broker and of `topics`."""
        self._throttle.rate = self._config.follower_replication_throttled_rate
        configure_throttle(self._throttle, THROTTLED_REPLICAS, topics, self._config.node_id)

    async def close_idle(self) -> None:
        """Close connections to brokers that no partition is fetched from."""
        await self._fetchers.close_idle()

    async def close(self) -> None:
        """Stop copying."""
        await self._fetchers.close()

    # Called by the fetchers

    def _create(self, leader: int, number: int) -> Fetcher:
        config = self._config
        settings = FetcherSettings(
            limits=FetchLimits(
                max_wait_ms=config.replica_fetch_wait_max_ms,
                min_bytes=config.replica_fetch_min_bytes,
                max_bytes=config.replica_fetch_response_max_bytes,
            ),
            partition_max_bytes=config.replica_fetch_max_bytes,
            backoff_s=config.replica_fetch_backoff_ms / 1000,
            replica_id=config.node_id,
            replica_epoch=self._broker_epoch,
            fetch_version=self._versions.fetch,
            offsets_version=self._versions.list_offsets,
        )
        client_id = f"broker-{config.node_id}-fetcher-{number}"
        return Fetcher(self._link_to(leader, client_id), settings, self, self._throttle, SYSTEM)

    async def flush(self, partitions: list[FollowedPartition]) -> list[tuple[FollowedPartition, str]]:
        """Flush logs that `flush.messages` requires to be on disk before the next fetch confirms the append.

        Return the partitions whose logs could not be flushed, with the reasons. `FailedDisks.check` takes them offline,
        unless the flush can be retried.
        """

        def flush() -> list[tuple[FollowedPartition, str]]:
            failures = []
            for partition in partitions:
                try:
                    partition.log.flusher.flush(now_ms())
                except KafkaError as error:
                    failures.append((partition, str(error)))
            return failures

        return await asyncio.get_running_loop().run_in_executor(self._executor, flush)

    def failed(self, partition: FollowedPartition, _: str) -> None:
        """Add the partition to `failures`. Its leader will remove this broker from the ISR."""
        self.failures.add(partition.topic_partition)

    def figures(self) -> Iterable[FetcherFigures]:
        """Yield the figures of all fetchers, each named like Kafka's fetcher thread."""
        for (leader, number), fetcher in self._fetchers.all.items():
            yield FetcherFigures(
                f"ReplicaFetcherThread-{number}-{leader}",
                self._address_of(leader),
                fetcher.requests,
                fetcher.fetched_bytes,
                tuple(fetcher.lags()),
            )
