"""Consumer groups on this broker: the coordinator, its history and its APIs, created when needed.

Importing their modules takes a quarter of the start-up time. In a cluster without groups they are imported shortly
after the start, or by the first group request.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.coordinators import offsets_topic
from headrace.broker.topic_table import TopicTable
from headrace.cluster.admin import ClusterAdmin
from headrace.cluster.image import GROUP_CONFIG, ConfigResource, TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.config import BrokerConfig
from headrace.config.coordinator import ASSIGNOR_NAMES
from headrace.config.group import GROUP_SETTINGS, parse_group_overrides
from headrace.errors import KafkaError
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import Answer, Handler, RequestContext
from headrace.slices import Steps
from headrace.types import Request, TopicPartition
from headrace.wire.apis import ApiKey

if TYPE_CHECKING:
    from headrace.broker.addresses import Endpoint
    from headrace.broker.apis.groups import Locate
    from headrace.coordinator.group_coordinator import GroupCoordinator
    from headrace.coordinator.groups.settings import GroupSettings
    from headrace.monitoring.groups.recorder import GroupHistory
    from headrace.replication.replica import Replica

HISTORY_FILE: Final = "group-history.db"
CLASSIC_APIS: Final = (
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.LIST_GROUPS,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.OFFSET_COMMIT,
    ApiKey.OFFSET_FETCH,
    ApiKey.OFFSET_DELETE,
)
CONSUMER_APIS: Final = (ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.CONSUMER_GROUP_DESCRIBE)
_SOON_S: Final = 0.2


class Groups:
    """Runs the group coordinator, its APIs and the group history, from `start` to `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        cache: MetadataCache,
        admin: ClusterAdmin,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        *,
        loop: asyncio.AbstractEventLoop,
        endpoint: "Callable[[RequestContext], Endpoint]",
        history_path: Path,
        opened: Callable[[], None],
        create_state_topic: Callable[[], Awaitable[None]],
        locate: "Locate | None" = None,
    ) -> None:
        """`opened` is called once the coordinator exists. `create_state_topic` creates `__transaction_state`. Without
        `locate`, this broker coordinates all groups.
        """
        self._locate = locate
        self._create_state_topic = create_state_topic
        self._config = config
        self._cache = cache
        self._admin = admin
        self._replicas = replicas
        self._purgatory = purgatory
        self._loop = loop
        self._endpoint = endpoint
        self._history_path = history_path
        self._opened = opened
        self.topic_table = TopicTable(cache)
        self._topic_creation = asyncio.Lock()
        self._opening: asyncio.TimerHandle | None = None
        self._coordinator: GroupCoordinator | None = None
        self._history: GroupHistory
        self._handlers: dict[ApiKey, Handler] = {}

    def start(self) -> None:
        """Load existing groups, or prepare for the first one."""
        if offsets_topic.NAME in self._cache.image.topics:
            self._open()
        else:
            self._opening = self._loop.call_later(_SOON_S, lambda: self.coordinator)

    async def stop(self) -> None:
        """Unload the groups, and flush the history."""
        if self._opening is not None:
            self._opening.cancel()
        await self.topic_table.stop()
        if self._coordinator is not None:
            self._coordinator.close()
            await self._history.stop()

    @property
    def coordinator(self) -> "GroupCoordinator":
        return self._open() if self._coordinator is None else self._coordinator

    @property
    def history(self) -> "GroupHistory":
        if self._coordinator is None:
            self._open()
        return self._history

    def routes(self) -> dict[ApiKey, Handler]:
        # In a cluster with ZooKeeper, Kafka's brokers could not load the consumer protocol's records.
        is_alone = self._config.zookeeper_connect is None
        has_consumer = is_alone and "consumer" in self._config.group_coordinator_rebalance_protocols
        return {key: self._handler(key) for key in CLASSIC_APIS + (CONSUMER_APIS if has_consumer else ())}

    def _handler(self, key: ApiKey) -> Handler:
        def handle(context: RequestContext, request: Request) -> Answer:
            if self._coordinator is None:
                self._open()
            return self._handlers[key](context, request)

        return handle

    def _open(self) -> "GroupCoordinator":
        from headrace.coordinator.group_coordinator import GroupCoordinator
        from headrace.monitoring.groups.recorder import GroupHistory
        from headrace.monitoring.groups.sampler import Reset

        config = self._config
        self._history = history = GroupHistory(
            self._history_path,
            interval_ms=config.headrace_group_history_interval_ms,
            retention_ms=config.headrace_group_history_retention_hours * 3_600_000,
            max_bytes=config.headrace_group_history_max_bytes,
            assumed_reset=Reset(config.headrace_group_lag_assumed_reset),
        )
        coordinator = GroupCoordinator(self._settings(), self._loop, self.topic_table, history.observe)
        self._coordinator = coordinator
        self._add_handlers(coordinator)
        for resource in self._cache.image.configs:
            if resource.kind == GROUP_CONFIG:
                self.configure(resource)
        for partition in self._replicas.partitions():
            self.led(partition.topic_partition)
        history.start(coordinator, self.topic_table, self._replica)
        self._opened()
        return coordinator

    def _replica(self, topic: str, partition: int) -> "Replica | None":
        """Return the partition if this broker leads it or is in its ISR; other replicas may end earlier."""
        led = self._replicas.find(topic, partition)
        if led is not None or self._replicas.peers is None:
            return led
        found = self._cache.image.topics.get(topic)
        if found is None or partition >= len(found.partitions):
            return None
        if self._config.node_id not in found.partitions[partition].isr:
            return None
        try:
            return self._replicas.readable(topic, partition)
        except KafkaError:  # offline
            return None

    def _add_handlers(self, coordinator: "GroupCoordinator") -> None:
        from headrace.broker.apis.committed_offsets import OffsetApis
        from headrace.broker.apis.consumer_groups import ConsumerGroupApis
        from headrace.broker.apis.group_admin import GroupAdminApis
        from headrace.broker.apis.groups import GroupApis
        from headrace.broker.coordinators.durable_groups import Replicated, durable, uncommitted_in

        replicated = None
        if self._replicas.peers is not None:
            uncommitted = uncommitted_in(self._replicas, self._cache)
            replicated = Replicated(uncommitted, self._config.offsets_commit_timeout_ms / 1000)
        families: list[GroupApis | GroupAdminApis | OffsetApis | ConsumerGroupApis] = [
            GroupApis(coordinator, self._endpoint, self._create_offsets_topic, self._create_state_topic, self._locate),
            GroupAdminApis(coordinator),
            OffsetApis(coordinator, self.topic_table),
            ConsumerGroupApis(coordinator, self.topic_table),
        ]
        for family in families:
            self._handlers.update(durable(family.routes(), self._purgatory, replicated))

    def _settings(self) -> "GroupSettings":
        from headrace.coordinator.groups.settings import GroupSettings

        config = self._config
        existing = self._cache.image.topics.get(offsets_topic.NAME)
        return GroupSettings(
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_max_size=config.group_max_size,
            group_consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            group_consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            group_consumer_assignment_interval_ms=config.group_consumer_assignment_interval_ms,
            group_consumer_max_size=config.group_consumer_max_size,
            group_consumer_assignors=tuple(ASSIGNOR_NAMES[name] for name in config.group_consumer_assignors),
            group_consumer_migration_policy=config.group_consumer_migration_policy.lower(),
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_minutes=config.offsets_retention_minutes,
            offsets_topic_compression_codec=config.offsets_topic_compression_codec,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
            offsets_topic_num_partitions=config.offsets_topic_num_partitions
            if existing is None
            else len(existing.partitions),
        )

    async def _create_offsets_topic(self) -> None:
        # Concurrent requests wait, too: a reply must not name a coordinator that is not ready.
        async with self._topic_creation:
            await self._admin.create_internal_topic(offsets_topic.NAME)

    # Changes of topics and settings

    def on_topics_changed(self, topics: Iterable[TopicImage]) -> None:
        """Coordinate the groups in new partitions of `__consumer_offsets`."""
        if self._coordinator is not None:
            for topic in topics:
                if topic.name == offsets_topic.NAME:
                    self._coordinator.note_partition_count(len(topic.partitions))
                    for index in range(len(topic.partitions)):
                        self.led(TopicPartition(topic.name, index))

    def on_topics_deleted(self, topics: Sequence[TopicImage]) -> Steps[None]:
        """Remove committed offsets of deleted topics, and all groups if `__consumer_offsets` is one of them."""
        for topic in topics:
            if topic.name == offsets_topic.NAME:
                for index in range(len(topic.partitions)):
                    self.resigned(TopicPartition(topic.name, index))
        if self._coordinator is not None:
            yield from self._coordinator.topics_deleted(frozenset(topic.name for topic in topics))

    def resigned(self, topic_partition: TopicPartition) -> None:
        """Drop the groups in a partition that this broker no longer leads."""
        if self._coordinator is not None and topic_partition.topic == offsets_topic.NAME:
            self._coordinator.resigned(topic_partition.partition)

    def transaction_ended(self, partition: int, producer_id: int, committed: bool) -> None:
        """Apply a marker that has been appended to `partition` of `__consumer_offsets`."""
        if self._coordinator is not None:
            self._coordinator.transaction_ended(partition, producer_id, committed)

    def led(self, topic_partition: TopicPartition) -> None:
        """Load the groups of a partition, if this broker leads it."""
        if topic_partition.topic == offsets_topic.NAME:
            try:
                partition = self._replicas.get(*topic_partition)
            except KafkaError:
                return  # another broker leads it, or it is offline, which has been logged
            self.coordinator.elected(topic_partition.partition, offsets_topic.OffsetsTopicLog(partition))

    def configure_all(self) -> None:
        """Apply the dynamic settings of all groups."""
        if self._coordinator is None:
            return
        from headrace.coordinator.groups.settings import EVERY_GROUP

        settings = self._coordinator.settings
        interval_ms = self._config.group_consumer_assignment_interval_ms
        settings.by_group[EVERY_GROUP] = replace(settings, group_consumer_assignment_interval_ms=interval_ms)
        for resource in self._cache.image.configs:
            if resource.kind == GROUP_CONFIG:
                self.configure(resource)

    def configure(self, group: ConfigResource) -> None:
        if self._coordinator is None:
            return
        from headrace.coordinator.groups.settings import EVERY_GROUP

        settings = self._coordinator.settings
        names = {key: f"group_{key.replace('.', '_')}" for key in GROUP_SETTINGS if key.startswith("consumer.")}
        overrides = parse_group_overrides(self._cache.image.config(GROUP_CONFIG, group.name))
        own: dict[str, Any] = {names[key]: value for key, value in overrides.items() if key in names}
        settings.by_group.pop(group.name, None)
        if own:
            settings.by_group[group.name] = replace(settings.of(EVERY_GROUP), **own)
