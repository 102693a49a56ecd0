"""One term in office: read the tree, pass every event to the machine, write its decisions, and send orders."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

from headrace.cluster import znodes
from headrace.cluster.controller.batches import REQUESTS, Announce, Lead, Send, Stop
from headrace.cluster.controller.machine import ControllerMachine, ReadTopic, Tree
from headrace.cluster.controller.work import Connect, Disconnect, Effect, Note, Remove, Write
from headrace.cluster.image import LeaderState
from headrace.cluster.loading import decoded
from headrace.cluster.membership.registration import WatchedStore
from headrace.cluster.offices.channels import Channels
from headrace.cluster.offices.event_queue import EventQueue, Figures
from headrace.cluster.offices.fenced_store import FencedStore
from headrace.cluster.offices.orders import REPLIES, Orders, errors_in
from headrace.cluster.offices.tree_reader import TreeReader
from headrace.cluster.store import BadVersionError, Create, Delete, MalformedNodeError, NoNodeError, Set
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition
from headrace.wording import count

T = TypeVar("T")

_FIRST_BALANCE_S: Final = 5.0
"""As in Kafka, the first balancing of leaders follows soon after the controller's election."""

log = logging.getLogger(__name__)
state_changes = logging.getLogger("headrace.state_change")


class TermSettings(NamedTuple):
    """Broker settings that the controller uses. `listener` is the inter-broker listener."""

    listener: str
    timeout_s: float
    """Timeout (s) for a broker's reply to an order."""
    may_be_unclean: Callable[[str], bool]
    """Returns True for a topic with unclean elections."""
    deletes_topics: bool
    balance: Callable[[], tuple[float, int] | None]
    """Returns `leader.imbalance.*`: seconds between checks, and percentage. None disables balancing."""


class Term:
    """The term of broker `broker_id` as controller of `epoch`.

    `ended` is called with the error that ends the term; then call `close`.
    """

    def __init__(
        self,
        store: WatchedStore,
        broker_id: int,
        epoch: int,
        epoch_version: int,
        settings: TermSettings,
        *,
        figures: Figures,
        ended: Callable[[Exception], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.epoch = epoch
        self._settings = settings
        self._loop = loop
        self._store = FencedStore(store, epoch_version)
        self._reader = TreeReader(store)
        self.machine = ControllerMachine(broker_id, epoch, settings.may_be_unclean)
        self._orders = Orders(broker_id, epoch, settings.listener)
        self.channels = Channels(
            client_id=str(broker_id),
            listener=settings.listener,
            timeout_s=settings.timeout_s,
            request=lambda send: self._orders.request(send, self.machine.context.topic_ids),
            reply_type=lambda message: REPLIES[type(message)],
            answered=self._answered,
            loop=loop,
        )
        self._asked_reassignments: dict[TopicPartition, tuple[int, ...]] = {}
        """The reassignments in `/admin/reassign_partitions`, which older tools write."""
        self._requests: set[asyncio.Future[Any]] = set()
        self.queue = EventQueue(ended, figures, loop)
        self.queue.put("take office", self._take_office)
        self._balancing = loop.create_task(self._balance())

    async def close(self) -> None:
        """End the term. Nothing is written or sent after this."""
        self._balancing.cancel()
        await asyncio.wait([self._balancing])
        await self.queue.close()
        await self.channels.close()
        for request in tuple(self._requests):
            if not request.done():
                request.set_exception(_not_controller())

    # Requests

    async def ask(self, name: str, decide: Callable[[ControllerMachine], tuple[T, Iterable[Effect]]]) -> T:
        """Pass a request to the machine, carry out the effects, and return the result.

        Raises the machine's KafkaError, or KafkaError(not_controller) if the term ends first.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._requests.add(future)
        future.add_done_callback(self._requests.discard)

        async def handle() -> None:
            try:
                answer, effects = decide(self.machine)
            except KafkaError as error:
                if not future.done():
                    future.set_exception(error)
                return
            await self._carry_out(effects)
            if not future.done():
                future.set_result(answer)

        self.queue.put(name, handle)
        return await future

    async def write(self, operation: Create | Set) -> None:
        """Write a node that only the controller writes. Raises StoreError, DeposedError."""
        await self._store.write([operation])

    async def grow(self, topic: str, operation: Set) -> None:
        """Write a topic's node with more partitions, and start them, before a later event can write the node.

        Raises BadVersionError, NoNodeError, and KafkaError(not_controller) if the term ends first.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        self._requests.add(future)
        future.add_done_callback(self._requests.discard)

        async def handle() -> None:
            try:
                await self._store.write([operation])
            except (BadVersionError, NoNodeError) as error:
                if error.path != operation.path:
                    raise
                if not future.done():
                    future.set_exception(error)
                return
            topics, _ = await self._reader.topics([topic])
            known = self.machine.context.topic_ids
            await self._carry_out(self.machine.topics_changed(known, {k: v for k, v in topics.items() if k in known}))
            if not future.done():
                future.set_result(None)

        self.queue.put("partitions", handle)
        await future

    def note_unclean(self, topic: str | None) -> None:
        """Elect leaders after `unclean.leader.election.enable` has changed for a topic or (None) for all."""

        async def handle() -> None:
            await self._carry_out(self.machine.enable_unclean(topic))

        self.queue.put("unclean election", handle)

    def refresh(self) -> None:
        """Read all watched nodes again: the watches were lost with the connection."""
        for name, handle in self._watched().items():
            self.queue.put_once(name, handle)

    # Events

    def _watched(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        return {
            "brokers": self._brokers_changed,
            "topics": self._topics_changed,
            "deletions": self._deletions_changed,
            "reassignments": self._reassignments_asked,
            "elections": self._elections_asked,
            "isr changes": self._isr_changes_notified,
            "log directories": self._log_dirs_notified,
        }

    def _news_of(self, name: str) -> Callable[[], None]:
        return lambda: self.queue.put_once(name, self._watched()[name])

    async def _take_office(self) -> None:
        if await self._reader.node(znodes.FEATURES, lambda: None) is None:
            await self._store.write([Create(znodes.FEATURES, znodes.encode_features({}))])
        brokers = await self._reader.brokers(self._news_of("brokers"))
        names = await self._reader.topic_names(self._news_of("topics"))
        topics, writes = await self._reader.topics(names)
        await self._store.write(writes)
        deletions = await self._reader.deletions(self._news_of("deletions"))
        topics, states = await self._read_states(topics)
        if not self._settings.deletes_topics:
            await self._store.remove(znodes.deletion_path(name) for name in deletions)
            deletions = []
        await self._carry_out(self.machine.take_office(Tree(brokers, topics, states, deletions)))
        log.info(
            "Controller of epoch %d: %s, %s", self.epoch, count(len(brokers), "broker"), count(len(topics), "topic")
        )
        for name in ("deletions", "reassignments", "elections", "isr changes", "log directories"):
            self.queue.put_once(name, self._watched()[name])

    async def _read_states(
        self, topics: Mapping[str, ReadTopic]
    ) -> tuple[dict[str, ReadTopic], dict[TopicPartition, LeaderState]]:
        """Return topics and states, without topics that have a malformed state: its partition would seem to be new."""
        states = await self._reader.states(
            [TopicPartition(name, index) for name, topic in topics.items() for index in topic.assignments]
        )
        malformed = {partition.topic for partition, state in states.items() if state is None}
        readable = {name: topic for name, topic in topics.items() if name not in malformed}
        return readable, {item: state for item, state in states.items() if state and item.topic in readable}

    async def _brokers_changed(self) -> None:
        await self._carry_out(self.machine.brokers_changed(await self._reader.brokers(self._news_of("brokers"))))

    async def _topics_changed(self) -> None:
        names = await self._reader.topic_names(self._news_of("topics"))
        known = self.machine.context.topic_ids
        topics, writes = await self._reader.topics([name for name in names if name not in known])
        await self._store.write(writes)
        await self._carry_out(self.machine.topics_changed(names, topics))

    async def _deletions_changed(self) -> None:
        names = await self._reader.deletions(self._news_of("deletions"))
        if not self._settings.deletes_topics:
            await self._store.remove(znodes.deletion_path(name) for name in names)
        elif names:
            await self._carry_out(self.machine.delete_topics(names))

    async def _reassignments_asked(self) -> None:
        """Start the reassignments in `/admin/reassign_partitions`, which older tools write; remove it if empty."""
        node = await self._reader.node(znodes.REASSIGNMENTS, self._news_of("reassignments"))
        targets = {} if node is None else _decoded_or_none(znodes.REASSIGNMENTS, znodes.decode_reassignments, node.data)
        self._asked_reassignments = targets
        if node is not None:
            wanted = {
                partition: target
                for partition, target in targets.items()
                if partition not in self.machine.context.moving
                or self.machine.context.assignment(partition).target != target
            }
            results, effects = self.machine.reassign(wanted)
            for partition, error in results.items():
                if error is not None:
                    log.warning("The reassignment of %s was refused: %s", partition, error)
            await self._carry_out(effects)
            if not targets:
                await self._store.remove([znodes.REASSIGNMENTS])

    async def _elections_asked(self) -> None:
        """Hold the elections in `/admin/preferred_replica_election`, which older tools write, and remove it."""
        node = await self._reader.node(znodes.ELECTIONS, self._news_of("elections"))
        if node is None:
            return
        wanted = _decoded_or_none(znodes.ELECTIONS, _partitions, node.data)
        results, effects = self.machine.elect(wanted)
        for partition, result in results.items():
            if isinstance(result, KafkaError) and result.code is not ErrorCode.election_not_needed:
                log.warning("The preferred replica of %s cannot become its leader: %s", partition, result)
        await self._carry_out(effects)
        await self._store.remove([znodes.ELECTIONS])

    async def _isr_changes_notified(self) -> None:
        found = await self._reader.notifications(znodes.ISR_CHANGES, self._news_of("isr changes"))
        partitions = {item for path, node in found for item in _decoded_or_none(path, _partitions, node.data)}
        if partitions:
            states = await self._reader.states(sorted(partitions))
            known = {item: state for item, state in states.items() if state is not None}
            await self._carry_out(self.machine.states_read(known))
        await self._store.write([Delete(path) for path, _ in found])

    async def _log_dirs_notified(self) -> None:
        found = await self._reader.notifications(znodes.LOG_DIR_EVENTS, self._news_of("log directories"))
        brokers = {broker for path, node in found for broker in _decoded_or_none(path, _failed_brokers, node.data)}
        if brokers:
            log.info("Log directories have failed on brokers %s", sorted(brokers))
            await self._carry_out(self.machine.directories_failed(brokers))
        await self._store.write([Delete(path) for path, _ in found])

    async def _balance(self) -> None:
        await asyncio.sleep(_FIRST_BALANCE_S)
        while True:
            balance = self._settings.balance()
            if balance is not None:

                async def handle(percentage: int = balance[1]) -> None:
                    await self._carry_out(self.machine.balance(percentage))

                self.queue.put_once("balance", handle)
            await asyncio.sleep(_FIRST_BALANCE_S if balance is None else balance[0])

    # Orders

    def _answered(self, send: Send, reply: Any) -> None:
        kind = REQUESTS[type(send.order)]
        if reply.error_code is not ErrorCode.none:
            log.warning("Broker %d refused %s with %s", send.broker_id, kind, reply.error_code.name)
        if isinstance(send.order, Announce):
            return
        errors = errors_in(send, reply, self.machine.context.topic_names)
        if isinstance(send.order, Stop) and reply.error_code is not ErrorCode.none:
            errors = {item: reply.error_code for item, stopped in send.order.replicas.items() if stopped.delete}
        if not errors:
            return

        async def handle() -> None:
            machine = self.machine
            known = machine.context.brokers.get(send.broker_id)
            if known is None or known.epoch != send.broker_epoch:
                return  # the broker has restarted, and new orders were sent to its new registration
            decide = machine.led if isinstance(send.order, Lead) else machine.stopped
            await self._carry_out(decide(send.broker_id, errors))

        self.queue.put("answer", handle)

    async def _carry_out(self, effects: Iterable[Effect]) -> None:
        """Write and send, in order. Raises StoreError and DeposedError, which end the term."""
        removals: list[Sequence[str]] = []
        for effect in effects:
            if removals and not isinstance(effect, (Remove, Note)):
                await self._store.remove(*removals)
                removals = []
            match effect:
                case Write(operations, parents):
                    await self._store.write(operations, parents)
                case Remove(paths):
                    removals.append(paths)
                case Send(broker_id, _, order):
                    _note(broker_id, order)
                    self.channels.send(effect)
                case Connect(broker):
                    self.channels.connect(broker)
                case Disconnect(broker_id):
                    self.channels.disconnect(broker_id)
                case Note(text):
                    log.info("%s", text)
        if removals:
            await self._store.remove(*removals)
        await self._tidy_reassignments()

    async def _tidy_reassignments(self) -> None:
        """Remove ended and replaced reassignments from `/admin/reassign_partitions`."""
        asked, context = self._asked_reassignments, self.machine.context
        left = {
            partition: target
            for partition, target in asked.items()
            if partition in context.moving and context.assignment(partition).target == target
        }
        if left == asked:
            return
        self._asked_reassignments = left
        if left:
            with suppress(NoNodeError):  # an operator has deleted it
                await self._store.write([Set(znodes.REASSIGNMENTS, znodes.encode_reassignments(left))])
        else:
            await self._store.remove([znodes.REASSIGNMENTS])


def _note(broker_id: int, order: Lead | Announce | Stop) -> None:
    size = len(order.replicas if isinstance(order, Stop) else order.partitions)
    state_changes.info("Sending %s for %s to broker %d", REQUESTS[type(order)], count(size, "partition"), broker_id)


def _decoded_or_none(path: str, decode: Callable[[bytes], dict[Any, Any]], data: bytes) -> dict[Any, Any]:
    """Decode a node that an operator or another broker has written; return an empty dict if it is malformed."""
    try:
        return decoded(path, decode, data)
    except MalformedNodeError as error:
        log.error("Ignored the malformed node %s, which will be deleted (%r)", path, error.__cause__)
        return {}


def _failed_brokers(data: bytes) -> dict[int, None]:
    return {znodes.decode_log_dir_failure(data): None}


def _partitions(data: bytes) -> dict[TopicPartition, None]:
    return dict.fromkeys(znodes.decode_partitions(data))


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.not_controller, "This is not the correct controller for this cluster.")
