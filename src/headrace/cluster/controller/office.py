"""Become controller, write the machine's decisions, and send its commands.

The shell of `machine`. Callers make one change at a time.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from headrace.cluster import znodes
from headrace.cluster.commands import Command
from headrace.cluster.controller.machine import ControllerMachine, Effects
from headrace.cluster.failures import StoreFailures
from headrace.cluster.image import BrokerImage
from headrace.cluster.loading import decoded, load_image, missing_nodes
from headrace.cluster.store import Check, Create, MetadataStore, NodeExistsError, NoNodeError, Operation, Set
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.ids import id_to_text, new_id

Deliver: TypeAlias = Callable[[int, Command], Awaitable[None]]
"""Delivers a command; returns when the broker has executed it."""


class ClusterIdMismatchError(Exception):
    """The data directory belongs to another cluster than the metadata store."""


class Office:
    """The controller of a cluster, on broker `broker_id`."""

    machine: ControllerMachine

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
        """Become controller under the next controller epoch, and read the tree. Create it for a new cluster.

        `cluster_id` is the data directory's; raises ClusterIdMismatchError if the tree has another. `founding` are
        further nodes of a new tree, as when Kafka's directories are adopted.
        """
        known = await self._found_cluster(cluster_id, founding)
        if cluster_id is not None and known != cluster_id:
            raise ClusterIdMismatchError(
                f"The data directory belongs to cluster {cluster_id}, but the metadata store to cluster {known}. "
                f"Start with the data directory and the metadata of one cluster."
            )
        epoch, self._epoch_version = await self._raise_epoch()
        self.cluster_id = known
        self.machine = ControllerMachine(self._broker_id, epoch, await load_image(self._store))

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
        assert registered.stat is not None, "it was set"
        brokers = (*self.machine.context.brokers.values(), broker._replace(epoch=registered.stat.czxid))
        await self.perform((), self.machine.brokers_changed(brokers))

    async def perform(
        self, operations: Sequence[Operation], effects: Effects, *, written: Callable[[], None] = lambda: None
    ) -> None:
        """Write `operations` and those of `effects` in one transaction, call `written`, then send the commands.

        Raises KafkaError, with nothing changed, if they cannot be written, as after another broker became controller.
        """
        writes = [*operations, *effects.operations]
        if writes:
            with self._failures.answering():
                await self._store.multi((Check(znodes.CONTROLLER_EPOCH, self._epoch_version), *writes))
            self._failures.note_written()
        self.machine.committed(effects)
        written()
        failure: BaseException | None = None
        for broker_id, command in effects.commands:
            # A durable change must become visible: send the next command even if a broker fails at this one.
            try:
                await self._deliver(broker_id, command)
            except Exception as error:  # noqa: BLE001  raised after the last command
                failure = failure or error
        if failure is not None:
            raise failure

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
                continue  # another broker was faster
            return decoded(znodes.CLUSTER_ID, znodes.decode_cluster_id, (await self._store.get(znodes.CLUSTER_ID)).data)

    async def _raise_epoch(self) -> tuple[int, int]:
        """Return the new controller epoch and the version of its node."""
        office = Create(znodes.CONTROLLER, znodes.encode_controller(self._broker_id, self._now_ms()), True)
        try:
            node = await self._store.get(znodes.CONTROLLER_EPOCH)
        except NoNodeError:
            await self._store.multi((office, Create(znodes.CONTROLLER_EPOCH, b"1")))
            return 1, 0
        epoch = decoded(znodes.CONTROLLER_EPOCH, int, node.data) + 1
        await self._store.multi((office, Set(znodes.CONTROLLER_EPOCH, str(epoch).encode(), node.stat.version)))
        return epoch, node.stat.version + 1
