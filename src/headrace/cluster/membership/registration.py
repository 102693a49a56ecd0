"""Register a broker in ZooKeeper: create the node that makes it a member of its cluster."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from headrace.cluster import znodes
from headrace.cluster.image import BrokerImage
from headrace.cluster.store import Create, MetadataStore, Node, NodeExistsError, Set
from headrace.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)


class WatchedStore(MetadataStore, Protocol):
    """A store that other processes write to. A lost connection ends all watches without calling `changed`."""

    @property
    def session(self) -> int:
        """The id of the session, which owns the ephemeral nodes."""

    async def watched(self, path: str, changed: Callable[[], None]) -> Node | None:
        """Return the node; None if it does not exist. Call `changed` once when it is created, written or deleted."""

    async def watched_children(self, path: str, changed: Callable[[], None]) -> list[str]:
        """Return the names of the node's children, sorted. Call `changed` once when one is created or deleted.

        Raises NoNodeError.
        """


async def register(store: WatchedStore, broker: BrokerImage, *, now_ms: int, patience_s: float) -> int:
    """Create the broker's node, and return its epoch, the czxid.

    After a crash of this broker, the node of its old session may remain: wait up to `patience_s` for it to expire.
    Raises KafkaError(duplicate_broker_registration) if it does not, and StoreError.
    """
    path, data = znodes.broker_path(broker.id), znodes.encode_broker(broker, now_ms)
    loop = asyncio.get_running_loop()
    deadline: float | None = None
    while True:
        try:
            # In two steps, as in Kafka: the node gets version 1.
            _, registered = await store.multi((Create(path, ephemeral=True), Set(path, data)))
        except NodeExistsError:
            pass
        else:
            assert registered.stat is not None, "every Set returns a stat"
            return registered.stat.czxid
        gone = asyncio.Event()
        node = await store.watched(path, gone.set)
        if node is None:
            continue
        if node.stat.owner == store.session:  # the session changed while an earlier call registered the broker
            return node.stat.czxid
        if deadline is None:
            deadline = loop.time() + patience_s
            log.warning(
                "Broker id %d is already registered: waiting up to %d s for the old session to expire",
                broker.id,
                patience_s,
            )
        elif loop.time() >= deadline:
            raise KafkaError(
                ErrorCode.duplicate_broker_registration,
                f"Another broker with id {broker.id} is running; set another broker.id for this one.",
            )
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await gone.wait()
