"""A broker in the simulation: the real membership, controller, storage, replicas, fetchers and request handlers,
composed as in `broker/node.py`, on a fake network and ZooKeeper and in virtual time.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from contextvars import Context
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final, cast
from unittest.mock import patch

from headrace.broker.addresses import endpoint_for
from headrace.broker.apis.fetch import FetchApi
from headrace.broker.apis.partition_offsets import PartitionOffsetsApi
from headrace.broker.apis.produce import ProduceApi
from headrace.broker.apis.produce_transactions import TransactionVerification
from headrace.broker.commands import Commands
from headrace.broker.coordinators.groups import Groups
from headrace.broker.current_leader import leader_in
from headrace.broker.membership.following import MemberFetchers
from headrace.broker.membership.leading import MemberLeaders
from headrace.broker.membership.member import Member
from headrace.broker.state_changes import StateChanges
from headrace.broker.upkeep import Upkeep, maintain_logs
from headrace.cluster.image import ConfigResource, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.config import BrokerConfig
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.dispatch import Dispatcher
from headrace.server.loop.turns import Turns
from headrace.slices import finish
from headrace.storage.dirs import log_dir
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.log.config import LogConfig
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey
from tests.simulation.cluster.loop import Process, ProcessLoop
from tests.simulation.cluster.net import Address, Network, Served

MAX_LAG_S: Final = 1.5
PORT: Final = 9092
SESSION_TIMEOUT_S: Final = 1.5
SETTINGS: Final = {
    "zookeeper.connect": "zk:2181",
    "zookeeper.session.timeout.ms": str(int(SESSION_TIMEOUT_S * 1000)),
    "zookeeper.connection.timeout.ms": "3000",
    "replica.lag.time.max.ms": str(int(MAX_LAG_S * 1000)),
    "replica.fetch.wait.max.ms": "300",
    "replica.fetch.backoff.ms": "150",
    "replica.socket.timeout.ms": "1000",
    "controller.socket.timeout.ms": "1000",
    "controlled.shutdown.retry.backoff.ms": "300",
    "leader.imbalance.check.interval.seconds": "3",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "log.retention.check.interval.ms": "2000",
}


def host_of(broker_id: int) -> str:
    return f"b{broker_id}"


def address_of(broker_id: int) -> Address:
    return host_of(broker_id), PORT


class LateCopies:
    """LeaderAndIsr requests that arrive at a broker again, perhaps at its next process. Shared by all brokers."""

    def __init__(self, loop: ProcessLoop, random: Random) -> None:
        self.rate = 0.0
        self._loop = loop
        self._random = random
        self._serving: dict[int, tuple[Process, Served]] = {}
        self._latest: dict[int, bytes] = {}

    def serve(self, broker_id: int, process: Process, served: Served) -> None:
        """Deliver copies over this connection, which has no client. The first may be meant for an earlier process."""
        self._serving[broker_id] = process, served
        latest = self._latest.get(broker_id)
        if latest is not None and self._random.random() < 3 * self.rate:
            self._deliver(broker_id, latest)

    def received(self, broker_id: int, frame: bytes) -> None:
        if int.from_bytes(frame[:2]) == ApiKey.LEADER_AND_ISR:
            self._latest[broker_id] = frame
            if self._random.random() < self.rate:
                later_s = self._random.expovariate(0.7)
                self._loop.call_later(later_s, self._deliver, broker_id, frame, context=Context())  # of no process

    def _deliver(self, broker_id: int, frame: bytes) -> None:
        process, served = self._serving[broker_id]
        message = len(frame).to_bytes(4, "big") + frame
        self._loop.call_soon(served.receive, message, context=process.context)


class TopicChanges:
    """Notifies a broker's groups of changed topics, as `Node` does."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def on_topics_changed(self, topics: Iterable[TopicImage]) -> None:
        self._groups.on_topics_changed(topics)

    async def on_topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        await finish(self._groups.on_topics_deleted(topics))

    async def on_configs_changed(self, resources: Sequence[ConfigResource]) -> None:
        """Groups have no settings of their own here."""


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
        boot_id: Path | None,
        copies: LateCopies,
        fetch_bytes: int,
        has_groups: bool,
    ) -> None:
        """`fetch_bytes` limits a follower's fetch of one partition; `has_groups` adds a group coordinator."""
        self.id = broker_id
        self.process = Process(host_of(broker_id))
        self._root = root
        self._boot_id = boot_id
        self._loop = loop
        self._network = network
        self._config_of = config_of
        self._copies = copies
        self._fetch_bytes = fetch_bytes
        self._has_groups = has_groups
        self.groups: Groups | None = None
        self.cache = MetadataCache()
        self.log_dirs: LogDirs | None = None
        self.member: Member
        self.replicas: ReplicaManager
        self.commands: Commands
        self.leaders: MemberLeaders
        self.fetchers: MemberFetchers
        self.has_started = False
        self.failed = asyncio.Event()
        """Set if another process has taken the broker's id."""

    @property
    def is_up(self) -> bool:
        return self.has_started and self.process.is_alive

    async def start(self) -> None:
        """Open the directories, join the cluster, and serve. Raises StoreError and KafkaError."""
        loop = cast(asyncio.AbstractEventLoop, self._loop)
        listener = f"PLAINTEXT://{host_of(self.id)}:{PORT}"
        own = {"broker.id": str(self.id), "listeners": listener, "replica.fetch.max.bytes": str(self._fetch_bytes)}
        config = BrokerConfig({**own, **SETTINGS})
        cache = self.cache
        member = self.member = Member(config, "zk:2181", cache, loop)
        cluster_id = await member.connect()
        with nullcontext() if self._boot_id is None else patch.object(log_dir, "_BOOT_ID", self._boot_id):
            dirs = self.log_dirs = LogDirs.open([self._root], broker_id=self.id, cluster_id=cluster_id, meta_version=0)
        cache.begin(cluster_id, await member.load())
        purgatory = Purgatory(loop)
        replicas = self.replicas = ReplicaManager(dirs, self._config_of, purgatory)
        replicas.exists = lambda partition: cache.image.topic_id_of(partition) is not None
        executor: Any = None  # the loop runs the work itself
        commands = self.commands = Commands(self.id, replicas, cache, executor, StateChanges(is_logged=False))
        dirs.owned.trust_new()
        leaders = self.leaders = member.leaders(replicas)
        replicas.peers = leaders.peers
        self.fetchers = commands.following = member.fetchers(executor)
        leader_of = leader_in(cache)
        turns = Turns(loop.call_soon, clock=lambda: 0)
        dispatcher = Dispatcher()
        for apis in (
            FetchApi(
                replicas,
                cache.topic_name,
                loop=loop,
                max_sessions=100,
                max_bytes=1 << 20,
                turns=turns,
                throttle=leaders.throttle,
                leader_of=leader_of,
            ),
            PartitionOffsetsApi(replicas, lambda _: False),
            *member.apis(commands),
        ):
            dispatcher.add_routes(apis.routes())
        transactions = TransactionVerification(replicas, cache.topic_name, cast(Any, None), config)
        produce = ProduceApi(replicas, cache.topic_name, purgatory, transactions, leader_of, turns)
        dispatcher.add_produce(produce.produce, produce.produce_run, produce.produce_many)
        if self._has_groups:
            self._start_groups(config, purgatory, dispatcher)
        maintain_logs(Upkeep(loop, executor), config, replicas)
        await member.join(config.parsed_listeners, self.failed)
        self._network.serve(
            address_of(self.id), self.process, dispatcher, lambda frame: self._copies.received(self.id, frame)
        )
        self._copies.serve(self.id, self.process, self._network.without_client(self.process, dispatcher))
        self.has_started = True

    def _start_groups(self, config: BrokerConfig, purgatory: Purgatory, dispatcher: Dispatcher) -> None:
        async def no_topic() -> None:
            """There are no transactions."""

        groups = self.groups = Groups(
            config,
            self.cache,
            self.member.admin,
            self.replicas,
            purgatory,
            loop=cast(asyncio.AbstractEventLoop, self._loop),
            endpoint=partial(endpoint_for, config),
            history_path=self._root / "none",
            opened=lambda: None,
            create_state_topic=no_topic,
            locate=self.member.locate,
        )
        self.commands.on_led, self.commands.on_resigned = groups.led, groups.resigned
        dispatcher.add_routes(groups.routes())
        groups.start()
        self.cache.attach(TopicChanges(groups))

    async def stop(self) -> None:
        """Move the leaders to other brokers, close the logs, and end the session."""
        await self.member.leave()
        self._network.stop_serving(self.process)
        await self.commands.close()
        groups, self.groups = self.groups, None
        if groups is not None:
            await groups.stop()
        await self.fetchers.close()
        await self.leaders.close()
        self.has_started, self.log_dirs = False, None
        self.replicas.close()
        await self.member.close()

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
    def broker_epoch(self) -> int:
        return self.member.broker_epoch

    @property
    def is_controller(self) -> bool:
        return self.is_up and self.member.candidate.term is not None

    @property
    def hosted(self) -> dict[TopicPartition, Any]:
        return {partition.topic_partition: partition for partition in self.replicas.hosted()}
