"""The controller of a one-broker cluster: write the machine's decisions in one transaction, and execute its orders.

Callers must make one change at a time.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias, TypeVar

from headrace.cluster import znodes
from headrace.cluster.commands import Command, LeaderAndIsr, StopReplica, UpdateMetadata
from headrace.cluster.controller.batches import Announce, Lead, Order, Send, Stop
from headrace.cluster.controller.context import Context
from headrace.cluster.controller.machine import ControllerMachine, ReadTopic, Tree
from headrace.cluster.controller.work import Effect, Write
from headrace.cluster.failures import StoreFailures
from headrace.cluster.image import (
    NEVER_WRITTEN,
    Assignment,
    BrokerImage,
    LeaderState,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from headrace.cluster.loading import decoded, load_image, missing_nodes
from headrace.cluster.store import Check, Create, MetadataStore, NodeExistsError, NoNodeError, Operation, Set
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition
from headrace.wire.ids import id_to_text, new_id

Deliver: TypeAlias = Callable[[int, Command], Awaitable[None]]
"""Delivers a command to the broker with that id; returns when the broker has executed it."""


T = TypeVar("T")

_DECIDED_AT_ONCE: Final = 100
"""Maximum number of topics and partitions to process on the event loop, each in a few microseconds."""


class _Decided(NamedTuple):
    """The writes to the store, and the commands to send after them."""

    writes: Sequence[Write]
    commands: Sequence[tuple[int, Command]]


class Office:
    """The controller of a cluster, on broker `broker_id`."""

    machine: ControllerMachine
    founded: MetadataImage
    """The topics and settings when this broker took office."""

    def __init__(
        self,
        store: MetadataStore,
        broker_id: int,
        failures: StoreFailures,
        *,
        deliver: Deliver,
        now_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._failures = failures
        self._deliver = deliver
        self._now_ms = now_ms

    async def take(self, cluster_id: str | None = None, founding: Sequence[Operation] = ()) -> None:
        """Become controller under the next controller epoch, and read the tree; create the tree of a new cluster.

        `cluster_id` is the data directory's. Raises KafkaError(inconsistent_cluster_id) if the tree has another id, and
        StoreError. `founding` are further operations for a new tree, for example to adopt Kafka's directories.
        """
        known = await self._found_cluster(cluster_id, founding)
        if cluster_id is not None and known != cluster_id:
            raise KafkaError(
                ErrorCode.inconsistent_cluster_id,
                f"The data directory belongs to cluster {cluster_id}, but the metadata store to cluster {known}. "
                "Use a data directory and a metadata store of the same cluster.",
            )
        epoch, self._epoch_version = await self._raise_epoch()
        self.cluster_id = known
        self.founded = await load_image(self._store)
        self.machine = ControllerMachine(self._broker_id, epoch, lambda _: False)
        self.machine.take_office(_tree_of(self.founded, epoch))  # without brokers, which has no effects

    async def register(self, broker: BrokerImage) -> None:
        """Register a broker, and elect leaders for its partitions. Its epoch is the zxid of this registration.

        Raises KafkaError(duplicate_broker_registration) while another broker with its id is running.
        """
        path, data = znodes.broker_path(broker.id), znodes.encode_broker(broker, self._now_ms())
        try:
            # In two steps, as in Kafka: the node gets version 1.
            _, registered = await self._store.multi((Create(path, ephemeral=True), Set(path, data)))
        except NodeExistsError:
            raise KafkaError(
                ErrorCode.duplicate_broker_registration,
                f"Another broker with id {broker.id} is running; set another node.id for this one.",
            ) from None
        assert registered.stat is not None, "every Set returns a stat"
        brokers = (*self.machine.context.brokers.values(), broker._replace(epoch=registered.stat.czxid))
        await self.perform((), lambda machine: machine.brokers_changed(brokers))

    async def perform(
        self,
        operations: Sequence[Operation],
        decide: Callable[[ControllerMachine], Sequence[Effect]],
        *,
        size: int = 0,
        written: Callable[[], None] = lambda: None,
    ) -> None:
        """Write `operations` and those of the machine in one transaction, call `written`, then send orders.

        `size` is the number of affected topics and partitions. Raises KafkaError, with nothing changed, if the
        transaction fails, for example because another broker has become controller. If orders fail, sends the rest,
        then raises the first error.
        """
        before = self.machine.context
        try:
            decided = await decided_at_once(size, lambda: self._decide(decide))
            await self._write(operations, decided.writes)
        except BaseException:
            self.machine.context = before
            raise
        written()
        failure: BaseException | None = None
        for broker_id, command in decided.commands:
            # A durable change must become visible: send all other commands even if a broker fails to execute this one.
            try:
                await self._deliver(broker_id, command)
            except Exception as error:  # noqa: BLE001  raised after the last command
                failure = failure or error
        if failure is not None:
            raise failure

    def _decide(self, decide: Callable[[ControllerMachine], Sequence[Effect]]) -> _Decided:
        """Replace the context with a copy, run `decide` on it, and return the writes and commands."""
        before = self.machine.context
        self.machine.context = before.copy()
        effects = decide(self.machine)
        return _Decided(
            [effect for effect in effects if isinstance(effect, Write)],
            [(effect.broker_id, self._command(effect.order, before)) for effect in effects if isinstance(effect, Send)],
        )

    async def _write(self, operations: Sequence[Operation], decided: Sequence[Write]) -> None:
        writes = [*operations]
        created = {operation.path for operation in operations if isinstance(operation, Create)}
        parents = [path for write in decided for path in write.parents if path not in created]
        with self._failures.answering():
            found = await self._store.get_many(parents) if parents else []
            writes += [Create(path) for path, node in zip(parents, found, strict=True) if node is None]
            writes += [operation for write in decided for operation in write.operations]
            if not writes:
                return
            await self._store.multi((Check(znodes.CONTROLLER_EPOCH, self._epoch_version), *writes))
        self._failures.note_written()

    def _command(self, order: Order, before: Context) -> Command:
        """Convert an order to a command for the broker in this process, which expects whole topics."""
        match order:
            case Lead(partitions, _):
                return LeaderAndIsr(tuple(partitions.values()))
            case Stop(replicas):
                return StopReplica(tuple(replicas.values()))
            case Announce(brokers, partitions):
                context = self.machine.context
                names = dict.fromkeys(partition.topic for partition in partitions)
                return UpdateMetadata(
                    context.controller_id,
                    context.epoch,
                    brokers,
                    tuple(_topic_image(context, name) for name in names if name in context.topic_ids),
                    tuple(name for name in names if name not in context.topic_ids and name in before.topic_ids),
                )

    async def close(self) -> None:
        """Leave the cluster, which deletes this broker's ephemeral nodes."""
        await self._store.close()

    async def _found_cluster(self, suggested: str | None, founding: Sequence[Operation]) -> str:
        """Return the cluster's id. The first broker creates the cluster."""
        while True:
            missing = await missing_nodes(self._store)
            if await self._store.exists(znodes.CLUSTER_ID) is None:
                cluster_id = suggested or id_to_text(new_id())
                missing.append(Create(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id)))
                missing.extend(founding)
            try:
                if missing:
                    await self._store.multi(missing)
            except NodeExistsError:
                continue  # another broker has created it
            return decoded(znodes.CLUSTER_ID, znodes.decode_cluster_id, (await self._store.get(znodes.CLUSTER_ID)).data)

    async def _raise_epoch(self) -> tuple[int, int]:
        """Create `/controller` and increment the controller epoch, in one transaction.

        Return the new epoch and the version of its node.
        """
        office = Create(znodes.CONTROLLER, znodes.encode_controller(self._broker_id, self._now_ms()), True)
        try:
            node = await self._store.get(znodes.CONTROLLER_EPOCH)
        except NoNodeError:
            await self._store.multi((office, Create(znodes.CONTROLLER_EPOCH, b"1")))
            return 1, 0
        epoch = decoded(znodes.CONTROLLER_EPOCH, int, node.data) + 1
        await self._store.multi((office, Set(znodes.CONTROLLER_EPOCH, str(epoch).encode(), node.stat.version)))
        return epoch, node.stat.version + 1


async def decided_at_once(size: int, decide: Callable[[], T]) -> T:
    """Call `decide`, which is pure, in a thread if it would block the event loop."""
    return await asyncio.to_thread(decide) if size > _DECIDED_AT_ONCE else decide()


def _tree_of(image: MetadataImage, epoch: int) -> Tree:
    """Return the topics of an image, without brokers."""
    states = {}
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.version != NEVER_WRITTEN:
                states[TopicPartition(topic.name, index)] = LeaderState(
                    partition.leader,
                    partition.leader_epoch,
                    partition.isr,
                    partition.version,
                    epoch,
                    zxid=partition.zxid,
                )
    return Tree((), {topic.name: read_topic(topic) for topic in image.topics.values()}, states, ())


def read_topic(topic: TopicImage) -> ReadTopic:
    """Return a topic's id and replicas, as if read from its node."""
    replicas = {index: Assignment(partition.replicas) for index, partition in enumerate(topic.partitions)}
    return ReadTopic(topic.topic_id, replicas)


def _topic_image(context: Context, name: str) -> TopicImage:
    partitions = []
    for partition in context.partitions_of(name):
        state, replicas = context.states[partition], context.assignment(partition).replicas
        partitions.append(PartitionImage(state.leader, state.leader_epoch, replicas, state.isr, state.version))
    return TopicImage(name, context.topic_ids[name], tuple(partitions))
