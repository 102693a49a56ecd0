"""The composition root: build, start and stop a broker."""

import asyncio
import gc
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.adoption.found_directories import adoption_of, metadata_file
from headrace.broker import addresses, founding
from headrace.broker.apis import late
from headrace.broker.apis.fetch import FetchApi
from headrace.broker.apis.metadata import MetadataApis
from headrace.broker.apis.partition_offsets import PartitionOffsetsApi
from headrace.broker.apis.produce import ProduceApi
from headrace.broker.apis.produce_transactions import TransactionVerification
from headrace.broker.apis.producers import ProducersApi
from headrace.broker.commands import Commands
from headrace.broker.coordinators import offsets_topic
from headrace.broker.coordinators.groups import HISTORY_FILE, Groups
from headrace.broker.coordinators.transactions import Transactions
from headrace.broker.current_leader import leader_in
from headrace.broker.disks.compaction import Compaction
from headrace.broker.disks.disk_watch import DiskWatch
from headrace.broker.disks.failed_disks import FailedDisks
from headrace.broker.disks.log_mover import LogMover
from headrace.broker.live_settings import LiveSettings
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.state_changes import StateChanges
from headrace.broker.upkeep import FAILURE_CHECK_MS, Upkeep, maintain_logs
from headrace.clock import now_ms
from headrace.cluster.admin import ClusterAdmin
from headrace.cluster.controller.office import Office
from headrace.cluster.failures import StoreFailures
from headrace.cluster.features import Features
from headrace.cluster.image import TOPIC_CONFIG, ConfigResource, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.producer_id_blocks import ProducerIdBlocks
from headrace.cluster.store import StoreError
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.topic_admin import TopicAdmin
from headrace.config import BrokerConfig, Listener
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.accept import Server
from headrace.server.context import Apis
from headrace.server.dispatch import Dispatcher
from headrace.slices import finish
from headrace.storage.dirs.log_dirs import LogDirs
from headrace.storage.dirs.meta_properties import stored_broker_id
from headrace.storage.dirs.strays import set_strays_aside
from headrace.types import TopicPartition

if TYPE_CHECKING:
    from headrace.adoption.plan import Adoption
    from headrace.broker.membership.following import MemberFetchers
    from headrace.broker.membership.leading import MemberLeaders
    from headrace.broker.membership.member import Member
    from headrace.monitoring.http import HttpServer

log = logging.getLogger(__name__)

_SLOW_DISK_THREADS: Final = 2
_GC_THRESHOLDS: Final = (25_000, 4, 500)
"""Collect the middle generation often: otherwise a collection traverses all objects of a large request at once, which
takes 200 ms per million objects."""


class Node:
    """One broker. After `start`, `listeners` contain the bound ports."""

    _admin: ClusterAdmin
    _changes: Sequence[Apis]
    """Handlers of the requests that change the cluster."""

    def __init__(
        self,
        config: BrokerConfig,
        data_directories: Sequence[Path],
        *,
        durable_metadata: bool = True,
        owns_process: bool = True,
    ) -> None:
        """`durable_metadata=False` omits the fsync of metadata changes, and `owns_process=False` keeps the settings of
        the garbage collector: both for brokers inside tests.
        """
        self.config = config
        self._data_directories = list(data_directories)
        self._durable_metadata = durable_metadata
        self._owns_process = owns_process
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(_SLOW_DISK_THREADS, thread_name_prefix="headrace-disk")
        self._opened = AsyncExitStack()
        self.cache = MetadataCache()
        self.listeners: list[Listener] = []
        self.http: HttpServer | None = None
        self.adoption: Adoption | None = None
        """The plan to adopt log directories that have no Headrace metadata; None if there is nothing to adopt."""
        self._member: Member | None = None
        """None for a cluster of one broker."""
        self._leaders: MemberLeaders | None = None  # as `_member`
        self._fetchers: MemberFetchers | None = None  # as `_member`

    @property
    def cluster_id(self) -> str:
        """The cluster's id; empty before the start."""
        return self.cache.image.cluster_id

    @property
    def failed(self) -> asyncio.Event:
        """Set when the broker has to stop, for example because its last log directory has failed (as in Kafka)."""
        return self._failed_disks.all_failed

    # Starting and stopping

    async def start(self) -> None:
        """Open everything and start serving.

        Raises ConfigError, KafkaError and OSError, after closing everything.
        """
        for warning in self.config.warnings:
            log.warning("%s", warning)
        self._opened.callback(self._executor.shutdown)
        try:
            noted_id = stored_broker_id(self._data_directories)
            if noted_id is not None:
                self.config.take_node_id(noted_id)
            cluster_id = None
            if self.config.zookeeper_connect is not None:
                cluster_id = await self._connect(self.config.zookeeper_connect)
            self._open_directories(cluster_id)
            await (self._found_cluster() if self._member is None else self._load_cluster(self._member))
            self._compose()
            self._start_upkeep()
            if self._member is not None:
                # A broker has no metadata before it registers: as in Kafka, clients that connect have to wait.
                await self._member.join(self.listeners, self.failed)
            await self._serve()
            if self._member is not None:
                self._opened.push_async_callback(self._member.leave)
        except BaseException as error:
            await self._opened.aclose()
            if isinstance(error, StoreError):
                raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error
            raise
        if self._owns_process:
            _tune_garbage_collection()

    async def stop(self) -> None:
        """Stop serving, then close the logs so that the next start does not recover them."""
        await self._opened.aclose()

    async def _serve(self) -> None:
        if self.http is not None:
            self._compose_http(self.http)
            await self.http.start()
            self._opened.push_async_callback(self.http.close)
        self._server.start()
        self._opened.callback(self._server.close)  # the first thing to stop

    async def _connect(self, zookeeper: str) -> str:
        """Begin a session with the ZooKeeper of the cluster to join, and return the cluster's id."""
        self._member = founding.new_member(self.config, zookeeper, self.cache, self._loop)
        self._opened.push_async_callback(self._member.close)
        return await self._member.connect()

    def _open_directories(self, joined: str | None) -> None:
        """Open the log directories and bind the listeners.

        Check everything before the first change to directories, which may belong to another broker. `joined` is the id
        of the cluster if it has ZooKeeper, otherwise None.
        """
        config, opened = self.config, self._opened
        founded = founding.cluster_of(self._data_directories)
        if joined is not None:
            founding.refuse_own_metadata(self._data_directories, founded)
        self.log_dirs = LogDirs.survey(
            self._data_directories,
            broker_id=config.node_id,
            cluster_id=joined or founded,
            meta_version=1 if joined is None else 0,
        )
        if joined is not None:
            self.log_dirs.leave_out(self.log_dirs.found.check_readable())  # Kafka may have written them
        self._settings = LiveSettings(config, self.cache)
        self._purgatory = Purgatory(self._loop)
        self.replicas = ReplicaManager(self.log_dirs, self._settings.log_config, self._purgatory)
        opened.callback(self.replicas.close)
        self._failed_disks = FailedDisks(self._loop, self.replicas)
        self._purgatory.on_failure = self._failed_disks.partition_failed
        changes = StateChanges(is_logged=joined is not None, path=config.headrace_state_change_log)
        opened.callback(changes.close)
        self._commands = Commands(config.node_id, self.replicas, self.cache, self._executor, changes)
        self._dispatcher = Dispatcher()
        self._server = Server(config, self._dispatcher, self._loop)
        if joined is None and founded is None:
            founding.refuse_without_metadata(self.log_dirs.owned)
            self.adoption = adoption_of(self.log_dirs, config)
        self._bind_http()
        opened.callback(self._server.close)
        self.listeners = self._server.bind()
        self.log_dirs.on_failure = self._failed_disks.directory_failed
        self.log_dirs.take_over()
        if joined is not None:
            return
        self._metadata = metadata_file(self.log_dirs.directories)
        self._failed_disks.metadata_directory = self._metadata.parent
        if founded is not None and not self._metadata.exists():
            founding.refuse_without_metadata(self.log_dirs.owned)

    async def _found_cluster(self) -> None:
        """Become the controller of a one-broker cluster, and lead its partitions."""
        config = self.config
        store = EmbeddedStore(self._metadata, executor=self._executor, durable=self._durable_metadata)
        self._opened.push_async_callback(store.close)
        failures = StoreFailures()
        office = Office(store, config.node_id, failures, deliver=self._commands.deliver, now_ms=now_ms)
        await office.take(self.log_dirs.owned.cluster_id, founding.first_operations(self.adoption, config.node_id))
        context = office.founded
        self.cache.begin(office.cluster_id, context.configs)
        self._settings.apply_to_broker()
        self.replicas.name_of = context.names.get
        set_strays_aside(self.log_dirs, context.topic_id_of, name_of=context.names.get, is_new=context.is_new)
        await office.register(addresses.broker_image(config, self.listeners))
        self._admin = TopicAdmin(store, self.cache, office, config, failures, check_directories=self.log_dirs.check)
        blocks = ProducerIdBlocks(store, config.node_id, failures)
        self._allocate_producer_ids = blocks.allocate
        self.features = Features(store, failures)
        await self.features.load()
        if not self.replicas.misses_logs:
            self.log_dirs.owned.trust_new()
        if self.adoption is not None:
            # Skip the producer ids in the logs, and mark the adoption as done: Kafka's metadata is now obsolete.
            await blocks.skip(max((led.last_producer_id for led in self.replicas.partitions()), default=-1))
            self.log_dirs.owned.note_adopted()
        topics = late.topics(self.cache, self._admin, config)
        self._changes = [topics, late.placement(self.cache), late.features(self.features)]

    async def _load_cluster(self, member: "Member") -> None:
        """Read the settings that a member needs to start. The controller assigns its partitions later."""
        cache = self.cache
        cache.begin(self.log_dirs.owned.cluster_id, await member.load())
        self._settings.apply_to_broker()
        self.replicas.exists = lambda partition: cache.image.topic_id_of(partition) is not None
        self._admin = member.admin
        self._allocate_producer_ids = member.controller.allocate_producer_ids
        self.features = member.features
        await self.features.load()
        self.log_dirs.owned.trust_new()
        self._failed_disks.on_failure = member.note_offline_partitions
        self._changes = member.apis(self._commands)
        self._leaders = member.leaders(self.replicas)
        self._opened.push_async_callback(self._leaders.close)
        self.replicas.peers = self._leaders.peers
        self._fetchers = self._commands.following = member.fetchers(self._executor)
        self._opened.push_async_callback(self._fetchers.close)
        self._opened.push_async_callback(self._commands.close)
        self._configure_replication(cache.image.configs)

    def _bind_http(self) -> None:
        """Bind the HTTP listener, if one is configured.

        Raises ConfigError if `headrace.http.listener` cannot be bound.
        """
        address = self.config.parsed_http_listener
        if address is not None:
            from headrace.monitoring.http import HttpServer

            self.http = HttpServer(*address)
            self._opened.push_async_callback(self.http.close)
            self.http.bind()

    def _compose_http(self, http: "HttpServer") -> None:
        from headrace.monitoring import gauges, replication, transactions
        from headrace.monitoring.groups import exported
        from headrace.monitoring.groups.routes import GroupRoutes

        http.add_metrics(lambda: gauges.log_directories(self.replicas))
        http.add_metrics(lambda: replication.replica_manager(self.replicas))
        http.add_metrics(lambda: replication.cluster(self.cache.image, self.config.node_id, self._commands.changes))
        if self._leaders is not None and self._fetchers is not None:
            http.add_metrics(partial(replication.followers, self._leaders.reports, self._fetchers))
        http.add_metrics(
            lambda: gauges.compaction(self._compaction.cleaner, self._compaction.dead_threads, self.log_dirs)
        )
        http.add_metrics(gauges.open_files)
        http.add_metrics(lambda: gauges.loop(self._server.watch))
        http.add_metrics(lambda: gauges.expiring_offsets(self.groups.coordinator))
        http.add_metrics(lambda: transactions.coordinator(self.transactions.present()))
        http.add_metrics(lambda: transactions.partitions(self.replicas, self.config.transaction_max_timeout_ms))
        http.add_metrics(lambda: exported.families(self.groups.history))
        if self._member is not None:
            self._member.add_metrics(http)
        GroupRoutes(self.groups.history).add_to(http)

    # Composition

    def _compose(self) -> None:
        config, opened = self.config, self._opened
        opened.callback(self._purgatory.close)
        self.groups = Groups(
            config,
            self.cache,
            self._admin,
            self.replicas,
            self._purgatory,
            loop=self._loop,
            endpoint=partial(addresses.endpoint_for, config),
            history_path=metadata_file(self.log_dirs.directories).with_name(HISTORY_FILE),
            opened=_tune_garbage_collection if self._owns_process else lambda: None,
            create_state_topic=lambda: self.transactions.create_topic(),  # noqa: PLW0108  created below
            locate=None if self._member is None else self._member.locate,
        )
        producer_ids = ProducerIds(self._allocate_producer_ids)
        self.transactions = Transactions(
            config,
            self.cache,
            self._admin,
            self.replicas,
            self._purgatory,
            loop=self._loop,
            groups=self.groups,
            producer_ids=producer_ids,
            version=lambda: self.features.transaction_version,
            others=None if self._member is None else self._member.others,
        )
        self._failed_disks.on_resigned = self._gone_offline
        self._commands.on_resigned = self._resigned
        self._commands.on_led = self._led
        self._dispatcher.features = self.features.announced
        self._mover = LogMover(
            self.replicas,
            self._loop,
            bytes_per_second=lambda: config.replica_alter_log_dirs_io_max_bytes_per_second,
        )
        opened.push_async_callback(self._mover.stop)
        leader_of = None if self._member is None else leader_in(self.cache)
        families: tuple[Apis, ...] = (
            FetchApi(
                self.replicas,
                self.cache.topic_name,
                loop=self._loop,
                max_sessions=config.max_incremental_fetch_session_cache_slots,
                max_bytes=config.fetch_max_bytes,
                turns=self._server.turns,
                throttle=None if self._leaders is None else self._leaders.throttle,
                rack_of=None if self._leaders is None else self._leaders.rack_of,
                leader_of=leader_of,
            ),
            PartitionOffsetsApi(self.replicas, lambda name: name == offsets_topic.NAME),
            ProducersApi(self.replicas, producer_ids.next, self.transactions.init_producer_id),
            late.log_dirs(self.replicas, self._mover),
            *self._changes,
            MetadataApis(self.cache, self._admin, config),
            late.configs(self.cache, self._admin, config),
        )
        for apis in families:
            self._dispatcher.add_routes(apis.routes())
        transactions = TransactionVerification(self.replicas, self.cache.topic_name, self.transactions, config)
        produce = ProduceApi(
            self.replicas, self.cache.topic_name, self._purgatory, transactions, leader_of, self._server.turns
        )
        self._dispatcher.add_produce(produce.produce, produce.produce_run, produce.produce_many)
        self._dispatcher.add_routes(self.groups.routes())
        self._dispatcher.add_routes(self.transactions.routes())
        self.groups.start()
        opened.push_async_callback(self.groups.stop)
        self.transactions.start()
        opened.push_async_callback(self.transactions.stop)
        self.cache.attach(self)

    # Changes of topics and settings

    def on_topics_changed(self, topics: Iterable[TopicImage]) -> None:
        topics = tuple(topics)
        self.groups.on_topics_changed(topics)
        self.transactions.on_topics_changed(topics)

    async def on_topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        self.transactions.on_topics_deleted(topics)
        await finish(self.groups.on_topics_deleted(topics))

    async def on_configs_changed(self, resources: Sequence[ConfigResource]) -> None:
        await self._settings.apply(resources, self.replicas, self.groups)
        self._configure_replication(resources)

    def _configure_replication(self, resources: Iterable[ConfigResource]) -> None:
        names = [resource.name for resource in resources if resource.kind == TOPIC_CONFIG]
        for part in (self._leaders, self._fetchers):
            if part is not None:
                part.configure({name: self.cache.topic_config(name) for name in names})

    def _led(self, topic_partition: TopicPartition) -> None:
        """Load the coordinators' state from a partition that this broker begins to lead."""
        self.groups.led(topic_partition)
        self.transactions.led(topic_partition)

    def _gone_offline(self, topic_partition: TopicPartition) -> None:
        """Stop using a partition that has gone offline."""
        if self._fetchers is not None:
            self._fetchers.forget((topic_partition,))
        self._resigned(topic_partition)

    def _resigned(self, topic_partition: TopicPartition) -> None:
        """Unload the coordinators' state of a partition that this broker no longer leads."""
        self.groups.resigned(topic_partition)
        self.transactions.resigned(topic_partition)

    # Upkeep

    def _start_upkeep(self) -> None:
        config, replicas, opened = self.config, self.replicas, self._opened
        upkeep = Upkeep(self._loop, self._executor)
        opened.push_async_callback(upkeep.stop)
        self._disk_watch = DiskWatch(config, replicas, self._loop)
        opened.callback(self._disk_watch.stop)
        self._disk_watch.start()
        self._compaction = Compaction(config, replicas, self._loop)
        opened.push_async_callback(self._compaction.stop)
        self._compaction.start()
        upkeep.every(
            "The abort of timed-out transactions",
            lambda: config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            self.transactions.abort_timed_out,
        )
        upkeep.every(
            "The expiry of transactional ids",
            lambda: config.transaction_remove_expired_transaction_cleanup_interval_ms,
            self.transactions.forget_expired,
        )
        maintain_logs(upkeep, config, replicas)
        upkeep.every("The check for failed disks", lambda: FAILURE_CHECK_MS, self._failed_disks.check)


def _tune_garbage_collection() -> None:
    """Exclude permanent objects from garbage collection, and collect less often."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()


def default_directories(config: BrokerConfig) -> list[Path]:
    return [Path(directory).expanduser() for directory in config.log_dirs or config.log_dir or ()]
