"""The controller: takes the cluster's metadata from the store, keeps the image of it, and makes every change.

Decisions are pure functions (topic_changes, elections); this shell writes what they decide, swaps the image, and tells
the listener. It knows neither logs nor sockets.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from headrace.cluster import topic_changes, znodes
from headrace.cluster.drafts import Change, Draft
from headrace.cluster.elections import elect
from headrace.cluster.image import (
    BROKER_CONFIG,
    BrokerImage,
    ConfigResource,
    MetadataImage,
    TopicImage,
)
from headrace.cluster.loading import decoded, load_image, missing_nodes
from headrace.cluster.store import (
    BadVersion,
    Create,
    MetadataStore,
    NodeExists,
    NoNode,
    Operation,
    Set,
    StoreError,
    StoreLocked,
    StoreUnavailable,
)
from headrace.cluster.topic_changes import MAX_PARTITIONS_PER_REQUEST, NewPartitions, NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.slices import Pace

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

PRODUCER_IDS_PER_BLOCK: Final = 1000
_DECIDED_AT_ONCE: Final = 100
"""Topics and partitions: one takes some microseconds."""
_MAX_PRODUCER_ID: Final = 2**63 - 1

Alteration: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From a resource's settings to its new ones; raises KafkaError to leave them."""


class PartitionChange(NamedTuple):
    """A partition that this broker has to create, lead or follow from now on."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    is_new: bool


def _to_the_end(change: Callable[_P, Coroutine[Any, Any, _R]]) -> Callable[_P, Coroutine[Any, Any, _R]]:
    """Do the whole of `change` even where whoever asked for it goes away: half of it would be durable and unseen."""

    @functools.wraps(change)
    async def shielded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return await asyncio.shield(change(*args, **kwargs))

    return shielded


class ControllerListener(Protocol):
    """Who carries changes out on this broker. Called on the event loop once the change is durable."""

    def check_directories(self) -> None:
        """Raises KafkaError where no log can be made now, because no log directory works."""

    def make_logs(self, changes: Sequence[PartitionChange]) -> Awaitable[None] | None:
        """These partitions are about to be seen by clients, with the settings in `Controller.upcoming`.

        Where making their logs takes the disk some time, answer an awaitable: they are seen once it is done.
        """

    def on_partitions(self, changes: Sequence[PartitionChange]) -> None:
        """These partitions are new or have another leader, epoch or replicas; clients see them from now on."""

    def on_topics_deleted(self, topics: Sequence[TopicImage]) -> Awaitable[None] | None:
        """The topics are gone; so must their logs be, once what is answered is done."""

    def on_configs_changed(self, resources: Sequence[ConfigResource]) -> Awaitable[None] | None:
        """The run-time settings of `resources` changed; those of brokers are in force already."""


class ClusterIdMismatch(Exception):
    """The data directory belongs to another cluster than the metadata store."""


class Controller:
    """Metadata of one cluster, as seen and changed by broker `config.node_id`.

    start() before anything else; attach() once somebody can carry changes out. Changes happen one after the other.
    """

    def __init__(
        self, store: MetadataStore, config: BrokerConfig, *, now_ms: Callable[[], int], random: Random | None = None
    ) -> None:
        self._store = store
        self._config = config
        self._now_ms = now_ms
        self._random = random or Random()
        self._lock = asyncio.Lock()
        self._listeners: list[ControllerListener] = []
        self._store_failure: str | None = None
        self.image = MetadataImage()
        self.upcoming = self.image
        """What is durable: ahead of `image` while the logs of new partitions are made."""

    def attach(self, listener: ControllerListener) -> None:
        """Tell `listener` of every change from now on."""
        self._listeners.append(listener)

    async def start(self, cluster_id: str | None = None, founding: Sequence[Operation] = ()) -> None:
        """Read the tree, making it where it is new, take the controller's office, and put run-time settings in force.

        `cluster_id` is what the data directory says; raises ClusterIdMismatch where the tree has another. A new tree
        begins with the nodes that `founding` makes, as when directories of Kafka are adopted.
        """
        known = await self._found_cluster(cluster_id, founding)
        if cluster_id is not None and known != cluster_id:
            raise ClusterIdMismatch(
                f"The data directory belongs to cluster {cluster_id}, but the metadata store to cluster {known}. "
                f"Start with the data directory and the metadata of one cluster."
            )
        epoch = await self._take_office()
        image = await load_image(self._store)
        self.image = replace(image, cluster_id=known, controller_id=self._config.node_id, controller_epoch=epoch)
        self.upcoming = self.image
        self._reconfigure_broker()

    async def register(self, broker: BrokerImage) -> None:
        """Make this broker known, and leader of what it can lead, each partition under a higher leader epoch.

        The epoch rises even when the leader stays: what an unclean stop cut off the log may be written anew at the same
        offsets, and only the epoch tells the two apart (KIP-101).
        """
        async with self._lock:
            path, data = znodes.broker_path(broker.id), znodes.encode_broker(broker, self._now_ms())
            try:
                await self._store.create(path, data, ephemeral=True)
            except NodeExists:
                raise KafkaError(
                    ErrorCode.duplicate_broker_registration,
                    f"Another running broker has id {broker.id}; give this one its own with node.id.",
                ) from None
            image = self.image.with_brokers((*self.image.brokers.values(), broker))
            topics, operations = elect(image)
            await self._commit(Change(operations, image.with_topics(topics)))

    def partitions_of(self, broker_id: int) -> list[PartitionChange]:
        """Every partition with a replica on that broker."""
        return [
            change
            for topic in self.image.topics.values()
            for change in partition_changes(topic, 0, is_new=False)
            if broker_id in change.replicas
        ]

    @_to_the_end
    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicImage | KafkaError]:
        """Create topics, all that can be in one durable write; for each the topic or why not."""
        async with self._lock:
            draft = Draft(self.image)
            size = len(topics) + sum(max(new.partitions, len(new.assignments)) for new in topics)
            results = await _decide(
                size, lambda: topic_changes.create_topics(draft, topics, self._config, self._random)
            )
            if draft.operations and not validate_only:
                created = [topic for topic in results if isinstance(topic, TopicImage)]
                changes = [change for topic in created for change in partition_changes(topic, 0, is_new=True)]
                await self._add_partitions(draft.change(), changes)
            return results

    @_to_the_end
    async def create_partitions(
        self, requests: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Grow topics, all that can be in one durable write; for each None or why not."""
        async with self._lock:
            draft = Draft(self.image)
            size = len(requests) + sum(min(max(new.total, 0), MAX_PARTITIONS_PER_REQUEST) for new in requests)
            results = await _decide(size, lambda: topic_changes.grow_topics(draft, requests, self._random))
            if draft.operations and not validate_only:
                grown = [result for result in results if not isinstance(result, KafkaError)]
                changes = [change for topic, first in grown for change in partition_changes(topic, first, is_new=True)]
                await self._add_partitions(draft.change(), changes)
            return [result if isinstance(result, KafkaError) else None for result in results]

    @_to_the_end
    async def delete_topics(
        self, names: Sequence[str], ids: Mapping[str, uuid.UUID] = MappingProxyType({})
    ) -> list[KafkaError | None]:
        """Delete topics, all that exist in one durable write; for each None or why not.

        Of a topic in `ids` only the one with that id is meant, and not another that has got its name since.
        """
        async with self._lock:
            draft = Draft(self.image)
            size = sum(len(topic.partitions) for name in names if (topic := self.image.topics.get(name)) is not None)
            results = await _decide(len(names) + size, lambda: topic_changes.delete_topics(draft, names, ids))
            deleted = [topic for topic in results if isinstance(topic, TopicImage)]
            if deleted:
                await self._commit(draft.change())
                for listener in self._listeners:
                    await _wait_for(listener.on_topics_deleted(deleted))
            return [result if isinstance(result, KafkaError) else None for result in results]

    @_to_the_end
    async def alter_configs(
        self, alterations: Sequence[tuple[ConfigResource, Alteration]], *, validate_only: bool = False
    ) -> list[KafkaError | None]:
        """Change run-time settings, all that can be in one durable write; for each resource None or why not."""
        async with self._lock:
            results: list[KafkaError | None] = []
            configs: dict[ConfigResource, Mapping[str, str]] = {}
            pace = Pace()
            for resource, alteration in alterations:
                try:
                    configs[resource] = alteration(self.image.config(resource.kind, resource.name))
                except KafkaError as error:
                    results.append(error.with_traceback(None))
                else:
                    results.append(None)
                await pace.rest()
            if configs and not validate_only:
                operations = []
                with self._answering():
                    for resource, values in configs.items():
                        operations.append(await self._config_operation(resource, values))
                        await pace.rest()
                await self._commit(Change(operations, self.image.with_configs(configs)))
                if any(resource.kind == BROKER_CONFIG for resource in configs):
                    self._reconfigure_broker()
                for listener in self._listeners:
                    await _wait_for(listener.on_configs_changed(tuple(configs)))
            return results

    async def create_internal_topic(self, name: str) -> TopicImage:
        """The internal topic of that name, created now where it is missing; raises KafkaError where it cannot be."""
        existing = self.image.topics.get(name)
        if existing is not None:
            return existing
        new = topic_changes.internal_topic(name, self._config, len(self.image.brokers))
        (result,) = await self.create_topics((new,))
        if isinstance(result, TopicImage):
            return result
        if result.code == ErrorCode.topic_already_exists:
            return self.image.topics[name]
        raise result

    @_to_the_end
    async def allocate_producer_ids(self) -> tuple[int, int]:
        """A block of producer ids that nobody else has: the first and how many.

        Raises KafkaError(coordinator_load_in_progress), after which producers ask again, where none can be noted down.
        """
        path = znodes.PRODUCER_ID_BLOCK
        with self._answering(ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_load_in_progress):
            while True:
                node = await self._store.get(path)
                first = decoded(path, znodes.decode_producer_ids, node.data)[1] + 1 if node.data else 0
                last = first + PRODUCER_IDS_PER_BLOCK - 1
                if last > _MAX_PRODUCER_ID:
                    raise KafkaError(ErrorCode.unknown_server_error, "All producer ids of this cluster are used up.")
                block = znodes.encode_producer_ids(self._config.node_id, first, last)
                try:
                    await self._store.set(path, block, node.version)
                except BadVersion:
                    continue
                self._note_written()
                return first, PRODUCER_IDS_PER_BLOCK

    async def skip_producer_ids(self, last: int) -> None:
        """See to it that no id up to `last`, which is in use already, is given out."""
        path = znodes.PRODUCER_ID_BLOCK
        with self._answering():
            node = await self._store.get(path)
            if not node.data or decoded(path, znodes.decode_producer_ids, node.data)[1] < last:
                block = znodes.encode_producer_ids(self._config.node_id, 0, last)
                await self._store.set(path, block, node.version)

    async def close(self) -> None:
        """Leave the cluster: this broker's ephemeral nodes go."""
        await self._store.close()

    async def _found_cluster(self, suggested: str | None, founding: Sequence[Operation]) -> str:
        """The id of the cluster, which this broker founds, with the topics it brings, where it is the first."""
        while True:
            missing = await missing_nodes(self._store)
            if await self._store.exists(znodes.CLUSTER_ID) is None:
                cluster_id = suggested or znodes.encode_id(uuid.uuid4())
                missing.append(Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id)))
                missing.extend(founding)
            try:
                if missing:
                    await self._store.multi(missing)
            except NodeExists:
                continue  # another broker was faster
            return decoded(znodes.CLUSTER_ID, znodes.decode_cluster_id, (await self._store.get(znodes.CLUSTER_ID)).data)

    async def _take_office(self) -> int:
        """Become the controller, under an epoch higher than any before."""
        office = Create(znodes.CONTROLLER, znodes.encode_controller(self._config.node_id, self._now_ms()), True)
        try:
            node = await self._store.get(znodes.CONTROLLER_EPOCH)
        except NoNode:
            await self._store.multi((office, Create(znodes.CONTROLLER_EPOCH, b"1")))
            return 1
        epoch = decoded(znodes.CONTROLLER_EPOCH, int, node.data) + 1
        await self._store.multi((office, Set(znodes.CONTROLLER_EPOCH, str(epoch).encode(), node.version)))
        return epoch

    async def _config_operation(self, resource: ConfigResource, values: Mapping[str, str]) -> Operation:
        path, data = znodes.config_path(resource), znodes.encode_config(values)
        return Create(path, data) if await self._store.exists(path) is None else Set(path, data)

    async def _commit(self, change: Change) -> None:
        """Make `change` durable, then visible; raises KafkaError, with nothing changed, where it cannot be written."""
        await self._write(change)
        self.image = self.upcoming = change.image

    async def _write(self, change: Change) -> None:
        if change.operations:
            with self._answering():
                await self._store.multi(change.operations)
            self._note_written()

    @contextmanager
    def _answering(
        self,
        locked: ErrorCode = ErrorCode.not_controller,
        failed: ErrorCode = ErrorCode.kafka_storage_error,
    ) -> Iterator[None]:
        """Make a failure of the store a KafkaError, and log it once for as long as it lasts.

        `locked` is for a store that another process has locked. Admin clients try again by themselves after
        NOT_CONTROLLER, and after hardly anything else: see docs/decisions/076-failures-of-the-store.md.
        """
        try:
            yield
        except StoreError as error:
            if str(error) != self._store_failure:
                self._store_failure = str(error)
                log.error("Topics and settings cannot be changed: %s", error)
            if isinstance(error, StoreUnavailable):
                code = locked if isinstance(error, StoreLocked) else failed
                raise KafkaError(code, f"Nothing was changed: {error}") from error
            raise KafkaError(
                failed, f"Nothing was changed: {error}. The metadata was changed by somebody else: restart the broker."
            ) from error

    def _note_written(self) -> None:
        if self._store_failure is not None:
            self._store_failure = None
            log.info("Topics and settings can be changed again")

    async def _add_partitions(self, change: Change, partitions: Sequence[PartitionChange]) -> None:
        """As `_commit`, but the logs are made first: what a client sees it can use at once."""
        mine = [partition for partition in partitions if self._config.node_id in partition.replicas]
        self._check_directories()
        await self._write(change)
        self.upcoming = change.image
        try:
            for listener in self._listeners:
                await _wait_for(listener.make_logs(mine))
        finally:
            self.image = change.image
        for listener in self._listeners:
            listener.on_partitions(mine)
        self._check_directories()  # the last may have failed meanwhile, and nothing was made

    def _check_directories(self) -> None:
        for listener in self._listeners:
            listener.check_directories()

    def _reconfigure_broker(self) -> None:
        changed = self._config.reconfigure(
            self.image.config(BROKER_CONFIG, ""), self.image.config(BROKER_CONFIG, str(self._config.node_id))
        )
        if changed:
            log.info("Settings of this broker changed at run time: %s", ", ".join(sorted(changed)))


async def _decide(size: int, decide: Callable[[], _R]) -> _R:
    """The result of `decide`, which is pure: from a thread if there is much to decide, so that others are served."""
    return await asyncio.to_thread(decide) if size > _DECIDED_AT_ONCE else decide()


async def _wait_for(done: Awaitable[None] | None) -> None:
    if done is not None:
        await done


def partition_changes(topic: TopicImage, first: int, *, is_new: bool) -> list[PartitionChange]:
    """The topic's partitions from number `first` on, as a broker is told of them."""
    return [
        PartitionChange(
            topic.name,
            topic.topic_id,
            index,
            partition.leader,
            partition.leader_epoch,
            partition.replicas,
            partition.isr,
            is_new,
        )
        for index, partition in enumerate(topic.partitions)
        if index >= first
    ]
