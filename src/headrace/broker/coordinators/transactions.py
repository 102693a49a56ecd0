"""Transactions on this broker: the coordinator and its APIs, created when needed.

They are imported at the start if `__transaction_state` exists, otherwise by the first transactional request.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.producer_ids import ProducerIds
from headrace.clock import SYSTEM
from headrace.cluster.admin import ClusterAdmin
from headrace.cluster.image import TopicImage
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.topic_names import GROUP_OFFSETS, TRANSACTION_STATE
from headrace.config import BrokerConfig
from headrace.coordinator.runtime.partitioner import partition_for
from headrace.errors import ErrorCode, KafkaError
from headrace.replication.purgatory import Purgatory
from headrace.replication.replica_manager import ReplicaManager
from headrace.server.context import Answer, Handler, RequestContext
from headrace.slices import finish
from headrace.types import Request, TopicPartition
from headrace.wire.apis import ApiKey

if TYPE_CHECKING:
    from headrace.broker.coordinators.groups import Groups
    from headrace.broker.membership.transactions import OtherBrokers
    from headrace.coordinator.transaction_coordinator import TransactionCoordinator
    from headrace.coordinator.transactions.states import TransactionMetadata

log = logging.getLogger(__name__)

_APIS: Final = (
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.WRITE_TXN_MARKERS,
    ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_TRANSACTIONS,
    ApiKey.LIST_TRANSACTIONS,
)


class Transactions:
    """Runs the transaction coordinator and its APIs, from `start` to `stop`."""

    def __init__(
        self,
        config: BrokerConfig,
        cache: MetadataCache,
        admin: ClusterAdmin,
        replicas: ReplicaManager,
        purgatory: Purgatory,
        *,
        loop: asyncio.AbstractEventLoop,
        groups: "Groups",
        producer_ids: ProducerIds,
        version: Callable[[], int],
        others: "OtherBrokers | None" = None,
    ) -> None:
        """`version` returns the cluster's `transaction.version`; `others` is None for a cluster of one broker."""
        self._others = others
        self._config = config
        self._cache = cache
        self._admin = admin
        self._replicas = replicas
        self._purgatory = purgatory
        self._loop = loop
        self._groups = groups
        self._producer_ids = producer_ids
        self._version = version
        self._topic_creation = asyncio.Lock()
        self._coordinator: TransactionCoordinator | None = None
        self._handlers: dict[ApiKey, Handler] = {}
        self._more_ids: asyncio.Task[None] | None = None
        self._aborts: asyncio.Task[None] | None = None
        self._expiry: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Load existing transactional ids."""
        if TRANSACTION_STATE in self._cache.image.topics:
            self._open()

    async def stop(self) -> None:
        for task in (self._more_ids, self._aborts, self._expiry):
            if task is not None:
                task.cancel()
        if self._coordinator is not None:
            self._coordinator.close()

    @property
    def coordinator(self) -> "TransactionCoordinator":
        return self._open() if self._coordinator is None else self._coordinator

    def present(self) -> "list[TransactionMetadata]":
        """Return the metadata of this coordinator's transactional ids."""
        return [] if self._coordinator is None else self._coordinator.present()

    def routes(self) -> dict[ApiKey, Handler]:
        """Return the handlers of all transaction APIs except InitProducerId."""
        return {key: self._handler(key) for key in _APIS}

    def _handler(self, key: ApiKey) -> Handler:
        def handle(context: RequestContext, request: Request) -> Answer:
            if self._coordinator is None:
                self._open()
            return self._handlers[key](context, request)

        return handle

    def init_producer_id(self, context: RequestContext, request: Request) -> Answer:
        """Handle InitProducerId with a transactional id."""
        if self._coordinator is None:
            self._open()
        return self._handlers[ApiKey.INIT_PRODUCER_ID](context, request)

    async def create_topic(self) -> None:
        """Create `__transaction_state` if it is missing. Raises KafkaError."""
        async with self._topic_creation:
            await self._admin.create_internal_topic(TRANSACTION_STATE)
        if self._coordinator is None:
            self._open()  # producers send requests immediately

    def _open(self) -> "TransactionCoordinator":
        from headrace.broker.apis.transactions.admin import TransactionAdminApis
        from headrace.broker.apis.transactions.offsets import TransactionalOffsetsApi
        from headrace.broker.apis.transactions.producers import TransactionApis
        from headrace.broker.coordinators.state_topic import PartitionMarkers
        from headrace.coordinator.transaction_coordinator import TransactionCoordinator, TransactionSettings

        config = self._config
        existing = self._cache.image.topics.get(TRANSACTION_STATE)
        settings = TransactionSettings(
            partition_count=config.transaction_state_log_num_partitions
            if existing is None
            else len(existing.partitions),
            max_timeout_ms=config.transaction_max_timeout_ms,
            id_expiration_ms=config.transactional_id_expiration_ms,
            has_two_phase_commit=config.transaction_two_phase_commit_enable,
        )
        markers = partial(
            PartitionMarkers,
            self._replicas,
            self._purgatory,
            exists=self._exists,
            on_offsets=self._groups.transaction_ended,
        )
        coordinator = TransactionCoordinator(
            settings,
            self._loop,
            markers(elsewhere=None if self._others is None else self._others.write_marker),
            version=self._version,
            take_producer_id=self._take_producer_id,
            clock=SYSTEM,
        )
        self._coordinator = coordinator
        producers = TransactionApis(
            coordinator,
            partition_count=self._partition_count,
            offsets_partition=self._offsets_partition,
            more_producer_ids=self._producer_ids.refill,
        )
        offsets = TransactionalOffsetsApi(
            lambda: self._groups.coordinator,
            self._groups.topic_table,
            self,
            self._replicas,
            self._purgatory,
            self._partition_count,
            self._offsets_partition,
            lambda: config.transaction_partition_verification_enable,
        )
        # Do not forward a marker from another broker: it might arrive after the coordinator has sent it again.
        for family in (producers, TransactionAdminApis(coordinator, markers()), offsets):
            self._handlers.update(family.routes())
        for partition in self._replicas.partitions():
            self.led(partition.topic_partition)
        return coordinator

    def _take_producer_id(self) -> int | None:
        producer_id = self._producer_ids.take()
        if producer_id is None and (self._more_ids is None or self._more_ids.done()):
            self._more_ids = self._loop.create_task(self._refill())
        return producer_id

    async def _refill(self) -> None:
        try:
            await self._producer_ids.refill()
        except KafkaError as error:
            log.warning("Cannot allocate producer ids; producers that need one will retry: %s", error)

    # Verification

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        client: str,
    ) -> Mapping[TopicPartition, ErrorCode] | Awaitable[Mapping[TopicPartition, ErrorCode]]:
        """Check that the partitions are in the producer's transaction, or add them if `adds` (KIP-890).

        Return the errors of partitions.
        """
        from headrace.coordinator.transactions.states import ProducerIdentity

        if self._others is not None:
            elsewhere = self._others.verify(transactional_id, producer_id, producer_epoch, partitions)
            if elsewhere is not None:
                return elsewhere
        coordinator = self.coordinator
        producer = ProducerIdentity(producer_id, producer_epoch)
        if not adds:
            return coordinator.verify(transactional_id, producer, frozenset(partitions))
        try:
            coordinator.add_partitions(transactional_id, producer, frozenset(partitions), client_version=2)
        except KafkaError as error:
            return dict.fromkeys(partitions, error.code)
        coordinator.note_client(transactional_id, client)
        waiting = coordinator.committed(transactional_id)
        return {} if waiting is None else self._added(waiting, partitions)

    async def _added(
        self, waiting: "asyncio.Future[KafkaError | None]", partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]:
        error = await waiting
        return {} if error is None else dict.fromkeys(partitions, ErrorCode.coordinator_not_available)

    def _partition_count(self, topic: str) -> int:
        found = self._cache.image.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def _exists(self, partition: TopicPartition) -> bool:
        return 0 <= partition.partition < self._partition_count(partition.topic)

    def _offsets_partition(self, group_id: str) -> int:
        return partition_for(
            group_id, self._partition_count(GROUP_OFFSETS) or self._config.offsets_topic_num_partitions
        )

    # Changes of topics, and timeouts

    def on_topics_changed(self, topics: Iterable[TopicImage]) -> None:
        """Coordinate the transactional ids in new partitions of `__transaction_state`."""
        for topic in topics:
            if topic.name == TRANSACTION_STATE:
                if self._coordinator is not None:
                    self._coordinator.note_partition_count(len(topic.partitions))
                for index in range(len(topic.partitions)):
                    self.led(TopicPartition(topic.name, index))

    def on_topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        for topic in topics:
            if topic.name == TRANSACTION_STATE:
                for index in range(len(topic.partitions)):
                    self.resigned(TopicPartition(topic.name, index))

    def resigned(self, topic_partition: TopicPartition) -> None:
        """Drop the transactional ids in a partition that this broker no longer leads."""
        if self._coordinator is not None and topic_partition.topic == TRANSACTION_STATE:
            self._coordinator.resigned(topic_partition.partition)

    def led(self, topic_partition: TopicPartition) -> None:
        """Load the transactional ids of a partition, if this broker leads it."""
        if topic_partition.topic == TRANSACTION_STATE:
            from headrace.broker.coordinators.state_topic import StateTopicLog

            try:
                partition = self._replicas.get(*topic_partition)
            except KafkaError:
                return  # another broker leads it, or it is offline, which has been logged
            self.coordinator.elected(topic_partition.partition, StateTopicLog(partition, self._purgatory))

    def abort_timed_out(self) -> None:
        """Abort transactions that have timed out, in time slices."""
        if self._coordinator is not None and (self._aborts is None or self._aborts.done()):
            self._aborts = self._loop.create_task(finish(self._coordinator.abort_timed_out()))

    def forget_expired(self) -> None:
        """Remove idle transactional ids, in time slices."""
        if self._coordinator is not None and (self._expiry is None or self._expiry.done()):
            self._expiry = self._loop.create_task(finish(self._coordinator.forget_expired()))
