"""The composition root: builds one broker out of its rooms, starts it, keeps it, and takes it down in order."""

import asyncio
import gc
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.broker import offsets_topic
from headrace.broker.apis.configs import ConfigApis
from headrace.broker.apis.fetch import FetchApi
from headrace.broker.apis.log_dirs import LogDirsApi
from headrace.broker.apis.metadata import MetadataApis
from headrace.broker.apis.partition_offsets import PartitionOffsetsApi
from headrace.broker.apis.placement import PlacementApis
from headrace.broker.apis.produce import ProduceApi
from headrace.broker.apis.producers import ProducersApi
from headrace.broker.apis.topics import TopicApis
from headrace.broker.compaction import Compaction
from headrace.broker.context import RequestContext
from headrace.broker.disk_watch import DiskWatch
from headrace.broker.dispatch import Dispatcher
from headrace.broker.found_directories import METADATA_FILE, adoption_of, metadata_file
from headrace.broker.groups import HISTORY_FILE, Groups
from headrace.broker.log_mover import LogMover
from headrace.broker.producer_ids import ProducerIds
from headrace.broker.server import Server
from headrace.cluster.controller import ClusterIdMismatch, Controller, PartitionChange
from headrace.cluster.embedded import EmbeddedStore, founded_cluster
from headrace.cluster.image import BROKER_CONFIG, GROUP_CONFIG, TOPIC_CONFIG, BrokerImage, ConfigResource, TopicImage
from headrace.cluster.image import Endpoint as BrokerEndpoint
from headrace.cluster.store import StoreError
from headrace.config import BrokerConfig, Listener, topic_values
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.group_commit import GroupCommit
from headrace.replication.partition import Partition
from headrace.replication.producer_snapshots import INTERVAL_MS as SNAPSHOT_INTERVAL_MS
from headrace.replication.producer_snapshots import ProducerSnapshots
from headrace.replication.replica_manager import ReplicaManager, now_ms
from headrace.slices import Pace, finish
from headrace.storage.log_config import LogConfig
from headrace.storage.log_dirs import LogDirs
from headrace.storage.meta_properties import noted_broker_id
from headrace.types import TopicPartition
from headrace.wording import count

if TYPE_CHECKING:
    from headrace.broker.apis.groups import Endpoint
    from headrace.broker.http import HttpServer
    from headrace.broker.left_transactions import LeftTransactions
    from headrace.cluster.adoption import Adoption

log = logging.getLogger(__name__)

DELETED_FILES_CHECK_MS: Final = 1000
FAILURE_CHECK_MS: Final = 1000
FIRST_RETENTION_MS: Final = 30_000
"""As Kafka: a broker that is often restarted drops old data too."""
_LAST_ANSWERS_S: Final = 1.0
"""How long a broker without log directories still tells its clients so, before it ends."""
_SLOW_DISK_THREADS: Final = 2
_GC_THRESHOLDS: Final = (25_000, 4, 500)
"""The middle generation is collected often: what a large request has made is walked in one piece, 50 ms for 125,000
objects."""


class Node:
    """One broker. `start`, then `stop`; `listeners` has the real ports in between."""

    def __init__(
        self,
        config: BrokerConfig,
        data_directories: Sequence[Path],
        *,
        durable_metadata: bool = True,
        owns_process: bool = True,
    ) -> None:
        """`durable_metadata=False` leaves fsync out of metadata changes and `owns_process=False` leaves the process's
        garbage collector alone: both for brokers inside somebody's tests.
        """
        self.config = config
        self._data_directories = list(data_directories)
        self._durable_metadata = durable_metadata
        self._owns_process = owns_process
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(_SLOW_DISK_THREADS, thread_name_prefix="headrace-disk")
        self._upkeep: list[asyncio.Task[None]] = []
        self.listeners: list[Listener] = []
        self.http: HttpServer | None = None
        self.cluster_id = ""
        self.adoption: Adoption | None = None
        """What was made of directories that this broker found without metadata of its own."""
        self._left_transactions: LeftTransactions | None = None
        self.failed = asyncio.Event()
        """Set when no log directory is left: the broker has to end, as Kafka's does."""

    async def start(self) -> None:
        """Open everything and begin to serve.

        Raises ConfigError and KafkaError that say what keeps the broker from starting; nothing is left open then.
        """
        config = self.config
        for warning in config.warnings:
            log.warning("%s", warning)
        noted_id = noted_broker_id(self._data_directories)
        if noted_id is not None:
            config.take_node_id(noted_id)
        founded = self._founded_cluster()
        self.log_dirs = LogDirs.survey(self._data_directories, broker_id=config.node_id, cluster_id=founded)
        self._group_commit = GroupCommit(self._loop, self._disk_failed)
        self.replicas = ReplicaManager(self.log_dirs, self._log_config, self._group_commit)
        self._dispatcher = Dispatcher()
        self._server = Server(config, self._dispatcher, self._loop)
        try:
            # Everything that can go wrong comes before the first change to a directory that is perhaps somebody else's.
            if founded is None:
                self._refuse_to_found_anew()
                self.adoption = adoption_of(self.log_dirs, config)
            self._bind_http()
            self.listeners = self._server.bind()
            self.log_dirs.on_failure = self._on_directory_failure
            self.log_dirs.take_over()
            self._metadata = metadata_file(self.log_dirs.directories)
            if founded is not None and not self._metadata.exists():
                self._refuse_to_found_anew()
            store = EmbeddedStore(self._metadata, executor=self._executor, durable=self._durable_metadata)
            self.controller = Controller(store, config, now_ms=now_ms)
            await self.controller.start(self.log_dirs.owned.cluster_id, self.adoption)
            self.replicas.set_strays_aside(self._topic_id_of, name_of=self.topic_name, is_new=self._is_new)
            self.cluster_id = self.log_dirs.owned.cluster_id
            await self.controller.register(self._broker_image())
        except BaseException as error:
            if self.http is not None:
                await self.http.close()
            self._server.close()
            self.replicas.close()
            if isinstance(error, (StoreError, ClusterIdMismatch)):
                raise KafkaError(ErrorCode.inconsistent_cluster_id, str(error)) from error
            raise
        self._lead(self.controller.partitions_of(config.node_id))
        if not self.replicas.misses_logs:
            self.log_dirs.owned.trust_new()
        if self.adoption is not None:
            await self._finish_adoption()
        # before groups are read, which then find the markers in the log
        self._end_left_transactions(tell_groups=False)
        self._compose()
        self._server.start()
        self._start_upkeep()
        if self.http is not None:
            self._compose_http(self.http)
            await self.http.start()
        if self._owns_process:
            _quiet_garbage_collection()

    def _founded_cluster(self) -> str | None:
        """The cluster id that the metadata knows, for directories that lost theirs (`meta.properties`)."""
        try:
            return founded_cluster(metadata_file(self._data_directories)) if self._data_directories else None
        except StoreError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, str(error)) from error

    async def stop(self) -> None:
        """Stop serving, then close the logs so that the next start need not recover them."""
        self._server.close()
        if self.http is not None:
            await self.http.close()
        await self.groups.stop()
        await self._compaction.stop()
        await self._mover.stop()
        self._disk_watch.stop()
        self._group_commit.close()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        self.replicas.close()
        await self.controller.close()
        self._executor.shutdown()

    def _refuse_to_found_anew(self) -> None:
        """Raises KafkaError where the metadata is not there, and may be in a log directory that is not there either."""
        why = self.log_dirs.owned.why_metadata_may_be_elsewhere()
        if why is not None:
            raise KafkaError(
                ErrorCode.kafka_storage_error,
                f"{METADATA_FILE}, which knows the cluster's topics, is in none of the log directories that work, and"
                f" {why}. Bring that back and start again. If it is lost for good, take it out of log.dirs: the topics"
                " in the other directories are then served with default settings",
            )

    def _bind_http(self) -> None:
        """Raises ConfigError when the address of `headrace.http.listener` cannot be taken."""
        address = self.config.parsed_http_listener
        if address is not None:
            from headrace.broker.http import HttpServer

            self.http = HttpServer(*address)
            self.http.bind()

    def _compose_http(self, http: "HttpServer") -> None:
        from headrace.broker import gauges
        from headrace.broker.group_history import exported
        from headrace.broker.group_history.routes import GroupRoutes

        http.add_metrics(lambda: gauges.log_directories(self.replicas))
        http.add_metrics(lambda: gauges.replica_manager(self.replicas))
        http.add_metrics(lambda: gauges.compaction(self._compaction, self.log_dirs))
        http.add_metrics(gauges.open_files)
        http.add_metrics(lambda: gauges.loop(self._server.watch))
        http.add_metrics(lambda: gauges.expiring_offsets(self.groups.coordinator))
        http.add_metrics(lambda: exported.families(self.groups.history))
        GroupRoutes(self.groups.history, self.topic_name).add_to(http)

    # Composition

    def _compose(self) -> None:
        config = self.config
        self.groups = Groups(
            config,
            self.controller,
            self.replicas,
            self,
            self._group_commit,
            loop=self._loop,
            endpoint=self._endpoint,
            history_path=metadata_file(self.log_dirs.directories).with_name(HISTORY_FILE),
            opened=_quiet_garbage_collection if self._owns_process else lambda: None,
        )
        self._mover = LogMover(
            self.replicas,
            self._loop,
            bytes_per_second=lambda: config.replica_alter_log_dirs_io_max_bytes_per_second,
        )
        producer_ids = ProducerIds(self.controller.allocate_producer_ids)
        for apis in (
            FetchApi(
                self.replicas,
                self.topic_name,
                loop=self._loop,
                max_sessions=config.max_incremental_fetch_session_cache_slots,
                max_bytes=config.fetch_max_bytes,
                turns=self._server.turns,
            ),
            PartitionOffsetsApi(self.replicas, lambda name: name == offsets_topic.NAME),
            ProducersApi(self.replicas, producer_ids.next),
            LogDirsApi(self.replicas, self._mover),
            PlacementApis(lambda: self.controller.image),
            TopicApis(self.controller, config),
            MetadataApis(self.controller, config),
            ConfigApis(self.controller, config),
        ):
            self._dispatcher.add_routes(apis.routes())
        produce = ProduceApi(self.replicas, self.topic_name, self._group_commit)
        self._dispatcher.add_produce(produce.produce, produce.produce_run, produce.produce_many)
        self._dispatcher.add_routes(self.groups.routes())
        self.groups.start()
        self.controller.attach(self)

    def _broker_image(self) -> BrokerImage:
        advertised = self.config.parsed_advertised_listeners or self.listeners
        return BrokerImage(
            self.config.node_id,
            tuple(
                BrokerEndpoint(each.name, each.host, each.port, self.config.security_protocol(each.name))
                for each in advertised
            ),
            self.config.broker_rack,
        )

    def _endpoint(self, context: RequestContext) -> "Endpoint":
        """Where the client finds this broker: what is advertised, or the very address it reached."""
        from headrace.broker.apis.groups import Endpoint

        advertised = self.config.parsed_advertised_listeners
        if advertised is not None:
            for each in advertised:
                if each.name == context.listener:
                    return Endpoint(self.config.node_id, each.host, each.port)
        return Endpoint(self.config.node_id, *context.local_address)

    # What APIs ask about topics

    def topic_name(self, topic_id: UUID | None) -> str | None:
        """The name of the topic with that id."""
        return None if topic_id is None else self.controller.image.names.get(topic_id)

    def topic_id(self, topic: str) -> UUID | None:
        """The id of the topic of that name."""
        found = self.controller.image.topics.get(topic)
        return None if found is None else found.topic_id

    def partition_count(self, topic: str) -> int | None:
        """How many partitions the topic has; None where there is no such topic."""
        found = self.controller.image.topics.get(topic)
        return None if found is None else len(found.partitions)

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        """Id (16 bytes) and number of partitions of the topic; None where there is no such topic."""
        found = self.controller.image.topics.get(topic)
        return None if found is None else (found.topic_id.bytes, len(found.partitions))

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition, where this broker leads it and it is not offline."""
        try:
            return self.replicas.get(topic, index)
        except KafkaError:
            return None

    # What the controller tells

    def check_directories(self) -> None:
        self.log_dirs.check()

    async def make_logs(self, changes: Sequence[PartitionChange]) -> None:
        # It waits for the disk: in a thread, so that other clients are served meanwhile.
        await self._loop.run_in_executor(self._executor, self._lead, changes)

    def on_partitions(self, changes: Sequence[PartitionChange]) -> None:
        self.groups.on_partitions(changes)

    async def on_topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        # Out of everybody's reach first, then away from the disk, which takes a thread some time.
        doomed = self.replicas.withdraw({topic.name for topic in topics})
        await finish(self.groups.on_topics_deleted(topics))
        await self._loop.run_in_executor(self._executor, self._delete_files, doomed)

    def _delete_files(self, partitions: Sequence[TopicPartition]) -> None:
        self.replicas.delete_files(partitions)
        self._sync_names()

    async def on_configs_changed(self, resources: Sequence[ConfigResource]) -> None:
        topics = {resource.name for resource in resources if resource.kind == TOPIC_CONFIG}
        pace = Pace()
        if any(resource.kind == BROKER_CONFIG for resource in resources):
            # Settings of the broker are defaults of every topic.
            topics |= self.controller.image.topics.keys()
            self.groups.configure_all()
        for resource in resources:
            if resource.kind == GROUP_CONFIG:
                self.groups.configure(resource)
                await pace.rest()
        if topics:
            await finish(self.replicas.reconfigure(topics))

    async def _finish_adoption(self) -> None:
        """What the logs themselves tell: ids of producers, which must not be given to others. From here on Kafka's
        metadata is of the past.
        """
        last = max((partition.last_producer_id for partition in self.replicas.partitions()), default=-1)
        await self.controller.skip_producer_ids(last)
        self.log_dirs.owned.note_adopted()

    def _on_directory_failure(self, directory: Path, why: str) -> None:
        """Called in any thread."""
        self._loop.call_soon_threadsafe(self._take_offline, directory, why)

    def _take_offline(self, directory: Path, why: str) -> None:
        gone = self.replicas.take_offline(directory, why)
        if not self.log_dirs.directories:
            log.critical(
                "Log directory %s has failed (%s), and no other is left: the broker ends. Mend it, then start the"
                " broker again",
                directory,
                why,
            )
            self._loop.call_later(_LAST_ANSWERS_S, self.failed.set)
            for topic_partition in gone:
                self.groups.resigned(topic_partition)
            return
        log.error(
            "Log directory %s has failed (%s). Offline, with KAFKA_STORAGE_ERROR as the answer: %s. Still served: %s."
            " Mend it, then restart the broker%s",
            directory,
            why,
            count(len(gone), "partition"),
            count(len(self.log_dirs.directories), "other directory", "other directories"),
            "; until then topics and settings cannot be changed, as it has the cluster's metadata"
            if self._metadata.parent == directory
            else "",
        )
        for topic_partition in gone:
            self.groups.resigned(topic_partition)

    def _end_left_transactions(self, *, tell_groups: bool) -> None:
        """Complete what Kafka left open in a directory that was its own, where the time has come."""
        if all(partition.transactions.first_offset is None for partition in self.replicas.partitions()):
            return
        if self._left_transactions is None:
            from headrace.broker.left_transactions import LeftTransactions

            self._left_transactions = LeftTransactions(self.replicas)
        try:
            self._left_transactions.end_due(self.groups.coordinator.transaction_ended if tell_groups else None)
        except (KafkaError, OSError) as error:
            log.error("Transactions that Kafka left open stay open for now: %s", error)

    def _topic_id_of(self, topic_partition: TopicPartition) -> UUID | None:
        topic = self.controller.image.topics.get(topic_partition.topic)
        return topic.topic_id if topic is not None and topic_partition.partition < len(topic.partitions) else None

    def _is_new(self, topic_partition: TopicPartition) -> bool:
        """Whether the partition was created after the last start: each start raises the leader epoch."""
        return (
            self.controller.image.topics[topic_partition.topic].partitions[topic_partition.partition].leader_epoch == 0
        )

    def _lead(self, changes: Sequence[PartitionChange]) -> None:
        for change in changes:
            if change.leader != self.config.node_id:
                continue
            topic_partition = TopicPartition(change.topic, change.partition)
            try:
                self.replicas.become_leader(topic_partition, change.topic_id, change.leader_epoch, is_new=change.is_new)
            except KafkaError as error:
                log.error("%s is offline: %s", topic_partition, error)
        self._sync_names()

    def _sync_names(self) -> None:
        try:
            self.log_dirs.sync_names()
        except KafkaError as error:
            log.error("Partitions created or deleted now may not be after a power failure: %s", error)

    def _log_config(self, topic: str) -> LogConfig:
        values: dict[str, Any] = topic_values(self.config, self.controller.upcoming.config(TOPIC_CONFIG, topic))
        values["cleanup_policy"] = frozenset(values["cleanup_policy"])
        return LogConfig(**{name: values[name] for name in LogConfig.__slots__ if name in values})

    # Upkeep

    def _start_upkeep(self) -> None:
        config = self.config
        replicas = self.replicas
        self._compaction = Compaction(config, replicas, self._loop)
        self._compaction.start()
        self._disk_watch = DiskWatch(config, replicas, self._loop)
        self._disk_watch.start()
        self._every(
            "Ending of transactions",
            lambda: config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
            lambda: self._end_left_transactions(tell_groups=True),
        )
        self._every(
            "Retention",
            lambda: config.log_retention_check_interval_ms,
            replicas.apply_retention,
            first_ms=FIRST_RETENTION_MS,
        )
        self._every(
            "Expiry of producers",
            lambda: config.producer_id_expiration_check_interval_ms,
            lambda: replicas.expire_producers(config.producer_id_expiration_ms),
        )
        self._every(
            "Flushing",
            lambda: min(config.log_flush_scheduler_interval_ms, FAILURE_CHECK_MS, replicas.shortest_flush_ms),
            replicas.flush_due,
            slow=True,
        )
        self._every("Looking for failed disks", lambda: FAILURE_CHECK_MS, self._look_for_failed_disks)
        snapshots = ProducerSnapshots(replicas.partitions)
        self._every("Noting the state of producers", lambda: SNAPSHOT_INTERVAL_MS, snapshots.take)
        self._every("Write-back", lambda: config.log_flush_offset_checkpoint_interval_ms, self._write_back, slow=True)
        self._every(
            "Removal of deleted files",
            lambda: DELETED_FILES_CHECK_MS,
            lambda: self.log_dirs.remove_deleted_files(now_ms()),
            slow=True,
        )

    def _look_for_failed_disks(self) -> None:
        for partition, why in self.replicas.failed():
            self._disk_failed(partition, KafkaError(ErrorCode.kafka_storage_error, why))

    def _disk_failed(self, partition: Partition, error: KafkaError) -> None:
        if self.replicas.give_up(partition, str(error)):
            self.groups.resigned(partition.topic_partition)

    def _write_back(self) -> None:
        self.log_dirs.flush_rolled()
        self.replicas.checkpoint()

    def _every(
        self,
        name: str,
        pause_ms: Callable[[], int],
        work: Callable[[], Callable[[], None] | None],
        *,
        slow: bool = False,
        first_ms: int = 86_400_000,
    ) -> None:
        """Do `work` again and again, in a thread where it is `slow`; what it returns is done in a thread.

        A failure is logged; the next turn comes. The first comes after `first_ms` at the latest.
        """

        async def repeat() -> None:
            longest = first_ms / 1000
            while True:
                await asyncio.sleep(min(pause_ms() / 1000, longest))
                longest = 86_400
                try:
                    rest = work if slow else work()
                    if rest is not None:
                        await self._loop.run_in_executor(self._executor, rest)
                except (KafkaError, OSError) as error:
                    log.error("%s failed and is tried again later: %s", name, error)
                except Exception:
                    log.exception("%s failed and is tried again later", name)

        self._upkeep.append(self._loop.create_task(repeat()))


def _quiet_garbage_collection() -> None:
    """What is there now stays: keep the collector from walking it, and from running at every few requests."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()


def default_directories(config: BrokerConfig) -> list[Path]:
    """The directories of `log.dirs`, or of `log.dir`."""
    return [Path(each).expanduser() for each in config.log_dirs or config.log_dir or ()]
