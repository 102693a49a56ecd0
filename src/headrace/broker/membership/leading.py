"""Services for the partitions that a member leads: ISR changes, live brokers, racks, and the leaders' throttle."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from headrace.broker.membership.throttles import configure_throttle
from headrace.client.link import Link
from headrace.cluster.metadata_cache import MetadataCache
from headrace.config import BrokerConfig
from headrace.config.replication import RACK_AWARE_SELECTOR
from headrace.replication.leading.followers import Followers
from headrace.replication.leading.isr_reports import IsrReports
from headrace.replication.leading.peers import Peers
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.throttle import ReplicationThrottle

THROTTLED_REPLICAS: Final = "leader.replication.throttled.replicas"
"""Topic setting with the replicas that leaders throttle."""

log = logging.getLogger(__name__)


class MemberLeaders:
    """Reports ISR changes to the controller, and checks for lagging followers.

    `address` returns the controller's address, `broker_epoch` this broker's epoch.
    """

    def __init__(
        self,
        config: BrokerConfig,
        cache: MetadataCache,
        replicas: ReplicaManager,
        *,
        address: Callable[[], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._config = config
        self._cache = cache
        self._replicas = replicas
        timeout_s = config.controller_socket_timeout_ms / 1000
        self._link = Link(address, client_id=str(config.node_id), loop=loop, api_versions=True, timeout_s=timeout_s)
        self.reports = IsrReports(self._link, loop=loop, broker_id=config.node_id, broker_epoch=broker_epoch)
        self.throttle = ReplicationThrottle(
            window_count=config.replication_quota_window_num, window_s=config.replication_quota_window_size_seconds
        )
        self.rack_of = self._rack_of if config.replica_selector_class == RACK_AWARE_SELECTOR else None
        self.peers = Peers(
            config.node_id,
            is_alive=lambda broker: broker in cache.image.brokers,
            max_lag_ms=lambda: config.replica_lag_time_max_ms,
            now_ms=lambda: time.monotonic_ns() // 1_000_000,
            alter_isr=self.reports,
        )
        self._checks = loop.create_task(self._check())

    def _rack_of(self, broker_id: int) -> str | None:
        broker = self._cache.image.brokers.get(broker_id)
        return None if broker is None else broker.rack

    def configure(self, topics: Mapping[str, Mapping[str, str]]) -> None:
        """Apply the settings of the broker and of `topics`."""
        self.throttle.rate = self._config.leader_replication_throttled_rate
        configure_throttle(self.throttle, THROTTLED_REPLICAS, topics, self._config.node_id)

    async def _check(self) -> None:
        """Remove lagging followers from the ISR, as often as Kafka does."""
        while True:
            await asyncio.sleep(self._config.replica_lag_time_max_ms / 2000)
            for partition in self._replicas.partitions():
                if partition.followers is not None:
                    self._check_one(partition.followers)

    @staticmethod
    def _check_one(followers: Followers) -> None:
        try:
            followers.check()
        except Exception:
            log.exception("The check for lagging followers failed: this is a bug, please report it")

    async def close(self) -> None:
        """Stop checking and reporting."""
        self._checks.cancel()
        await asyncio.gather(self._checks, return_exceptions=True)
        self._link.close()
        await self.reports.close()
