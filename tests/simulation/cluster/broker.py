"""A broker in the simulation: the real storage, replicas, fetchers and request handlers, composed as in
`broker/node.py`, on a fake network and in virtual time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import patch

from headrace.broker.apis.controls import ControlApis
from headrace.broker.apis.fetch import FetchApi
from headrace.broker.apis.partition_offsets import PartitionOffsetsApi
from headrace.broker.apis.produce import ProduceApi
from headrace.broker.apis.produce_transactions import TransactionVerification
from headrace.broker.commands import Commands
from headrace.broker.current_leader import leader_in
from headrace.broker.membership.following import MemberFetchers
from headrace.broker.membership.leading import MemberLeaders
from headrace.broker.state_changes import StateChanges
from headrace.broker.upkeep import Upkeep, maintain_logs
from headrace.client.link import Link
from headrace.cluster.metadata_cache import MetadataCache
from headrace.config import BrokerConfig
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.dispatch import Dispatcher
from headrace.server.loop.turns import Turns
from headrace.storage.dirs import log_dir
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from tests.simulation.cluster.loop import Process, ProcessLoop
from tests.simulation.cluster.net import Address, Network

MAX_LAG_S: Final = 1.5
PORT: Final = 9092
SETTINGS: Final = {
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "300",
    "replica.fetch.backoff.ms": "150",
    "replica.socket.timeout.ms": "1000",
    "controller.socket.timeout.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "log.retention.check.interval.ms": "2000",
}


def host_of(broker_id: int) -> str:
    return f"b{broker_id}"


def address_of(broker_id: int) -> Address:
    return host_of(broker_id), PORT


class Broker:
    """One process of a broker, from its start to its death."""

    def __init__(
        self,
        broker_id: int,
        root: Path,
        *,
        loop: ProcessLoop,
        network: Network,
        config_of: Callable[[str], LogConfig],
        broker_epoch: int,
        boot_id: Path | None,
    ) -> None:
        self.id = broker_id
        self.process = Process(host_of(broker_id))
        self.broker_epoch = broker_epoch
        self._root = root
        self._boot_id = boot_id
        self._loop = loop
        self._network = network
        self._config_of = config_of
        self.cache = MetadataCache()
        self.log_dirs: LogDirs | None = None
        self.replicas: ReplicaManager
        self.fetchers: MemberFetchers
        self.has_started = False

    @property
    def is_up(self) -> bool:
        return self.has_started and self.process.is_alive

    async def start(self) -> None:
        """Open the directories and serve."""
        loop = cast(asyncio.AbstractEventLoop, self._loop)
        config = BrokerConfig({"broker.id": str(self.id), **SETTINGS})
        with nullcontext() if self._boot_id is None else patch.object(log_dir, "_BOOT_ID", self._boot_id):
            dirs = self.log_dirs = LogDirs.open([self._root], broker_id=self.id, cluster_id="c", meta_version=0)
        dirs.owned.trust_new()
        purgatory = Purgatory(loop)
        replicas = self.replicas = ReplicaManager(dirs, self._config_of, purgatory)
        cache = self.cache
        replicas.exists = lambda partition: cache.image.topic_id_of(partition) is not None
        executor: Any = None  # the loop runs the work itself
        commands = Commands(self.id, replicas, cache, executor, StateChanges(is_logged=False))
        leaders = MemberLeaders(
            config,
            cache,
            replicas,
            address=lambda: self._known_address(cache.image.controller_id),
            broker_epoch=lambda: self.broker_epoch,
            loop=loop,
        )
        replicas.peers = leaders.peers
        self.fetchers = commands.following = MemberFetchers(
            config,
            executor,
            link_to=self._fetching_link,
            address_of=self._known_address,
            broker_epoch=lambda: self.broker_epoch,
        )
        leader_of = leader_in(cache)
        dispatcher = Dispatcher()
        for apis in (
            FetchApi(
                replicas,
                cache.topic_name,
                loop=loop,
                max_sessions=100,
                max_bytes=1 << 20,
                turns=Turns(loop.call_soon, clock=lambda: 0),
                throttle=leaders.throttle,
                leader_of=leader_of,
            ),
            PartitionOffsetsApi(replicas, lambda _: False),
            ControlApis(commands, cache, broker_epoch=lambda: self.broker_epoch, read_configs=_read_configs),
        ):
            dispatcher.add_routes(apis.routes())
        transactions = TransactionVerification(replicas, cache.topic_name, cast(Any, None), config)
        produce = ProduceApi(replicas, cache.topic_name, purgatory, transactions, leader_of)
        dispatcher.add_produce(produce.produce, produce.produce_run, produce.produce_many)
        maintain_logs(Upkeep(loop, executor), config, replicas)
        self._network.listen(address_of(self.id), self.process, dispatcher)
        self.has_started = True

    def _known_address(self, broker_id: int) -> Address | None:
        broker = self.cache.image.brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoint("PLAINTEXT")
        return None if endpoint is None else (endpoint.host, endpoint.port)

    def _fetching_link(self, leader: int, client_id: str) -> Link:
        return Link(
            lambda: self._known_address(leader),
            client_id=client_id,
            loop=cast(asyncio.AbstractEventLoop, self._loop),
            api_versions=False,
            timeout_s=1.0,
        )

    def kill(self) -> None:
        """Kill the process. Its files remain."""
        self._loop.kill(self.process)
        self._network.died(self.process)
        self.unlock()

    def unlock(self) -> None:
        """Release the directories without closing the logs, as the death of a process does."""
        log_dirs, self.log_dirs = self.log_dirs, None
        if log_dirs is not None:
            for directory in log_dirs.owned.working:
                directory.unlock()

    @property
    def high_watermarks(self) -> Mapping[TopicPartition, int]:
        return {partition.topic_partition: partition.high_watermark for partition in self.replicas.hosted()}


def _read_configs(_: object) -> Awaitable[None]:
    return asyncio.sleep(0)
