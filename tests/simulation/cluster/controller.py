"""A controller that follows a script: it elects leaders as Kafka's does, and its commands may arrive late or twice.

It always knows correctly which brokers are alive. Commands reach a broker in order, over a real link; copies of them
may arrive later over another connection.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from random import Random
from typing import Any, Final, NamedTuple, cast

from headrace.client.link import Link, LinkError
from headrace.errors import ErrorCode
from headrace.server.context import RequestContext
from headrace.server.dispatch import Dispatcher
from headrace.types import TopicPartition
from headrace.wire.apis import ApiKey, request_encoder
from tests.simulation.cluster.broker import address_of, host_of
from tests.simulation.cluster.loop import Process, ProcessLoop
from tests.simulation.cluster.net import Network
from tests.simulation.cluster.store import NO_LEADER, DeposedError, State, Store

FIRST_ID: Final = 100
"""Controllers are brokers without replicas, with ids from here on."""
_ATTEMPTS: Final = 5
_VERSIONS: Final = {ApiKey.LEADER_AND_ISR: 7, ApiKey.UPDATE_METADATA: 8, ApiKey.STOP_REPLICA: 4}


class Command(NamedTuple):
    """A request to one registration of a broker."""

    broker_id: int
    broker_epoch: int
    api_key: ApiKey
    body: bytes
    deletes: TopicPartition | None = None


class Chances(NamedTuple):
    """Probabilities while faults happen."""

    late_copy: float
    copied: Collection[ApiKey]
    """The commands that may arrive again."""
    refused_change: float
    lost_write: float
    """That the answer to a change that was written is an unknown error."""


class Controller:
    """One controller after its election, until a newer one deposes it."""

    def __init__(
        self,
        store: Store,
        *,
        loop: ProcessLoop,
        network: Network,
        random: Random,
        chances: Chances,
        note: Callable[[str], None],
    ) -> None:
        store.controller_epoch += 1
        self.epoch = store.controller_epoch
        self.id = FIRST_ID + self.epoch
        self.process = Process(host_of(self.id))
        self.chances = chances
        self.store = store
        self._loop = loop
        self._network = network
        self._random = random
        self._note = note
        self._channels: dict[tuple[int, int], asyncio.Queue[Command]] = {}
        """Commands to a registration."""
        self._latest: dict[int, Command] = {}
        """The latest LeaderAndIsr by broker."""
        self._in_flight = 0
        dispatcher = Dispatcher()
        dispatcher.add_routes({ApiKey.ALTER_PARTITION: self._alter_partition})
        network.listen(address_of(self.id), self.process, dispatcher)

    @property
    def is_active(self) -> bool:
        return self.process.is_alive and self.store.controller_epoch == self.epoch

    @property
    def is_idle(self) -> bool:
        """True if all commands have been answered."""
        return not self._in_flight

    # Events

    def take_office(self) -> None:
        """Send what has been read from the store, then handle changed registrations."""
        self._note(f"controller {self.id} takes office with epoch {self.epoch}")
        self._send_metadata(self.store.partitions)
        self._send_states(self.store.partitions, self.store.brokers)
        self._send_stops(self.store.brokers)
        self.registrations_changed()

    def registrations_changed(self) -> None:
        """Handle brokers that died or started; if a broker did both, handle its death first."""
        store = self.store
        if not self.is_active:
            return
        gone = {broker for broker, epoch in store.handled.items() if store.brokers.get(broker) != epoch}
        new = {broker for broker, epoch in store.brokers.items() if store.handled.get(broker) != epoch}
        for broker in gone:
            del store.handled[broker]
        changed = [name for name in store.partitions if self._remove(name, gone)]
        for broker in sorted(new):
            store.handled[broker] = store.brokers[broker]
        elected = [name for name in store.partitions if self._elect_leaderless(name)] if new else []
        if not gone and not new:
            return
        self._note(f"controller {self.id} handles gone {sorted(gone)}, new {sorted(new)}")
        # As in Kafka, brokers first learn which brokers are alive.
        self._send_metadata(store.partitions)
        self._send_states({*changed, *elected}, set(store.handled) - new)
        for broker in sorted(new):
            hosted = [name for name, state in store.partitions.items() if broker in state.replicas]
            self._send_states(hosted, [broker])
        self._send_stops(new)

    def _is_live(self, broker: int) -> bool:
        return self.store.handled.get(broker, -1) == self.store.brokers.get(broker)

    def _remove(self, name: TopicPartition, gone: Iterable[int]) -> bool:
        """Remove dead brokers from the ISR, but not its last member, and replace a dead leader."""
        state = self.store.partitions[name]
        if not set(gone) & {*state.isr, state.leader}:
            return False
        isr = tuple(broker for broker in state.isr if self._is_live(broker)) or state.isr[:1]
        leader = state.leader if state.leader in isr and state.leader not in gone else self._leader_among(state, isr)
        if leader == state.leader and isr == state.isr:
            return False
        self._write(name, state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr))
        return True

    def _leader_among(self, state: State, isr: Sequence[int]) -> int:
        return next((broker for broker in state.replicas if broker in isr and self._is_live(broker)), NO_LEADER)

    def _elect_leaderless(self, name: TopicPartition) -> bool:
        state = self.store.partitions[name]
        leader = self._leader_among(state, state.isr)
        if state.leader != NO_LEADER or leader == NO_LEADER:
            return False
        isr = tuple(broker for broker in state.isr if self._is_live(broker))
        self._write(name, state._replace(leader=leader, leader_epoch=state.leader_epoch + 1, isr=isr))
        return True

    def elect(self, name: TopicPartition, preferred: int) -> None:
        """Elect a member of the ISR as leader."""
        state = self.store.partitions[name]
        if self.is_active and preferred in state.isr and self._is_live(preferred) and state.leader != preferred:
            self._write(name, state._replace(leader=preferred, leader_epoch=state.leader_epoch + 1))
            self._announce(name)

    def _announce(self, name: TopicPartition) -> None:
        self._send_states([name], self.store.handled)
        self._send_metadata([name])

    def _write(self, name: TopicPartition, state: State) -> State:
        written = self.store.write(name, state, self.epoch)
        self._note(
            f"store: {name} leader {written.leader} epoch {written.leader_epoch} isr {written.isr} v{written.version}"
        )
        return written

    # Requests of brokers

    async def _alter_partition(self, _: RequestContext, request: Any) -> Any:
        await asyncio.sleep(self._network.delay())
        if not self.is_active:
            return {"error_code": ErrorCode.not_controller, "topics": []}
        if self.store.brokers.get(request.broker_id) != request.broker_epoch:
            return {"error_code": ErrorCode.stale_broker_epoch, "topics": []}
        names = {topic_id: name for name, topic_id in self.store.topic_ids.items()}
        topics = []
        for topic in request.topics:
            partitions = [
                self._changed(TopicPartition(names[topic.topic_id], change.partition_index), change, request.broker_id)
                for change in topic.partitions
            ]
            topics.append({"topic_id": topic.topic_id, "partitions": partitions})
        return {"error_code": ErrorCode.none, "topics": topics}

    def _changed(self, name: TopicPartition, change: Any, sender: int) -> dict[str, Any]:
        state = self.store.partitions[name]
        members = [member.broker_id for member in change.new_isr_with_epochs]
        error = self._error_of(state, change, sender)
        if error is ErrorCode.none and set(members) != set(state.isr):
            state = self._write(name, state._replace(isr=tuple(sorted(members))))
            self._send_metadata([name])
            self._reassigned(name)
            if self._random.random() < self.chances.lost_write:
                error = ErrorCode.unknown_server_error
        self._note(f"controller {self.id}: {name} isr {members} of broker {sender}: {error.name}")
        return {
            "partition_index": name.partition,
            "error_code": error,
            "leader_id": state.leader,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
            "leader_recovery_state": 0,
            "partition_epoch": state.version,
        }

    def _error_of(self, state: State, change: Any, sender: int) -> ErrorCode:
        """Return the error of a change, with Kafka's checks in Kafka's order."""
        if change.leader_epoch != state.leader_epoch or sender != state.leader:
            return ErrorCode.fenced_leader_epoch
        if {member.broker_id for member in change.new_isr_with_epochs} == set(state.isr):
            return ErrorCode.none
        if change.partition_epoch != state.version:
            return ErrorCode.invalid_update_version
        for member in change.new_isr_with_epochs:
            known = self.store.brokers.get(member.broker_id)
            if not self._is_live(member.broker_id) or member.broker_epoch not in (-1, known):
                return ErrorCode.ineligible_replica
        if self._random.random() < self.chances.refused_change:
            return ErrorCode.ineligible_replica
        return ErrorCode.none

    # Reassignment

    def reassign(self, name: TopicPartition, target: tuple[int, ...]) -> None:
        """Start moving a partition to other brokers."""
        state = self.store.partitions[name]
        if not self.is_active or state.target is not None or set(target) == set(state.replicas):
            return
        adding = tuple(broker for broker in target if broker not in state.replicas)
        removing = tuple(broker for broker in state.replicas if broker not in target)
        replicas = (*target, *removing)
        for broker in target:
            self.store.stopping.pop((name, broker), None)
        self._write(
            name,
            state._replace(
                leader_epoch=state.leader_epoch + 1,
                replicas=replicas,
                adding=adding,
                removing=removing,
                target=target,
            ),
        )
        self._announce(name)
        self._reassigned(name)

    def _reassigned(self, name: TopicPartition) -> None:
        """End a reassignment whose new replicas are all in sync."""
        state = self.store.partitions[name]
        if state.target is None or not set(state.target) <= set(state.isr):
            return
        isr = tuple(broker for broker in state.isr if broker in state.target)
        live = [broker for broker in isr if self._is_live(broker)]
        if not live:
            return
        leader = state.leader if state.leader in live else live[0]
        done = state._replace(
            leader=leader,
            leader_epoch=state.leader_epoch + 1,
            isr=isr,
            replicas=state.target,
            adding=(),
            removing=(),
            target=None,
        )
        written = self._write(name, done)
        self._announce(name)
        self.store.stopping.update({(name, broker): written.leader_epoch for broker in state.removing})
        self._send_stops(state.removing)

    # Commands

    def _send_metadata(self, names: Iterable[TopicPartition]) -> None:
        states = {name: self.store.partitions[name] for name in names}
        topics = [
            {
                "topic_name": topic,
                "topic_id": self.store.topic_ids[topic],
                "partition_states": [
                    {
                        "partition_index": name.partition,
                        "controller_epoch": self.epoch,
                        "leader": state.leader,
                        "leader_epoch": state.leader_epoch,
                        "isr": state.isr,
                        "zk_version": state.version,
                        "replicas": state.replicas,
                        "offline_replicas": (),
                    }
                    for name, state in states.items()
                    if name.topic == topic
                ],
            }
            for topic in dict.fromkeys(name.topic for name in states)
        ]
        live = [
            {"id": broker, "endpoints": [_endpoint(broker)], "rack": None} for broker in (*self.store.handled, self.id)
        ]
        for broker in self.store.brokers:
            self._send(broker, ApiKey.UPDATE_METADATA, {"topic_states": topics, "live_brokers": live})

    def _send_states(self, names: Iterable[TopicPartition], brokers: Iterable[int]) -> None:
        for broker in tuple(brokers):
            states = {name: self.store.partitions[name] for name in sorted(names)}
            hosted = {name: state for name, state in states.items() if broker in state.replicas}
            if not hosted:
                continue
            topics = [
                {
                    "topic_name": topic,
                    "topic_id": self.store.topic_ids[topic],
                    "partition_states": [
                        {
                            "partition_index": name.partition,
                            "controller_epoch": self.epoch,
                            "leader": state.leader,
                            "leader_epoch": state.leader_epoch,
                            "isr": state.isr,
                            "partition_epoch": state.version,
                            "replicas": state.replicas,
                            "adding_replicas": state.adding,
                            "removing_replicas": state.removing,
                            "is_new": True,
                            "leader_recovery_state": 0,
                        }
                        for name, state in hosted.items()
                        if name.topic == topic
                    ],
                }
                for topic in dict.fromkeys(name.topic for name in hosted)
            ]
            self._send(broker, ApiKey.LEADER_AND_ISR, {"topic_states": topics, "live_leaders": []})

    def _send_stops(self, brokers: Iterable[int]) -> None:
        """Tell brokers to delete replicas that are no longer assigned to them."""
        for (name, broker), leader_epoch in tuple(self.store.stopping.items()):
            if broker not in brokers:
                continue
            for delete in (False, True):
                state = {
                    "partition_index": name.partition,
                    "leader_epoch": leader_epoch,
                    "delete_partition": delete,
                }
                topic = {"topic_name": name.topic, "partition_states": [state]}
                self._send(broker, ApiKey.STOP_REPLICA, {"topic_states": [topic]}, deletes=name if delete else None)

    def _send(
        self, broker: int, api_key: ApiKey, fields: dict[str, Any], *, deletes: TopicPartition | None = None
    ) -> None:
        epoch = self.store.brokers.get(broker)
        if epoch is None:
            return
        head = {"controller_id": self.id, "controller_epoch": self.epoch, "broker_epoch": epoch}
        body = bytearray()
        request_encoder(api_key, _VERSIONS[api_key])(body, {**_DEFAULTS[api_key], **head, **fields})
        command = Command(broker, epoch, api_key, bytes(body), deletes)
        channel = self._channels.get((broker, epoch))
        if channel is None:
            channel = self._channels[broker, epoch] = asyncio.Queue()
            self._loop.spawn(self.process, lambda: self._deliver_all(channel, broker, epoch))
        if api_key is ApiKey.LEADER_AND_ISR:
            self._latest[broker] = command
        channel.put_nowait(command)
        self._in_flight += 1
        if api_key in self.chances.copied and self._random.random() < self.chances.late_copy:
            self._loop.spawn(self.process, lambda: self._deliver_copy(command, self._random.expovariate(0.7)))

    async def _deliver_all(self, channel: "asyncio.Queue[Command]", broker: int, epoch: int) -> None:
        """Send commands in order; repeat a command until it is answered or the registration is gone."""
        link = self._link_to(broker)
        while True:
            command = await channel.get()
            await asyncio.sleep(self._network.delay())
            while self.store.brokers.get(broker) == epoch:
                try:
                    await link.exchange(command.api_key, _VERSIONS[command.api_key], command.body)
                    if command.deletes is not None and self.is_active:
                        self.store.stopping.pop((command.deletes, broker), None)
                    break
                except LinkError:
                    await asyncio.sleep(0.02)
            self._in_flight -= 1

    async def _deliver_copy(self, command: Command, later_s: float) -> None:
        """Send a command again later, perhaps to the next process of the broker."""
        await asyncio.sleep(later_s)
        self._note(f"a copy of {command.api_key.name} with controller epoch {self.epoch} to {command.broker_id}")
        link = self._link_to(command.broker_id)
        for _ in range(_ATTEMPTS):
            try:
                await link.exchange(command.api_key, _VERSIONS[command.api_key], command.body)
                break
            except LinkError:
                await asyncio.sleep(0.02)
        link.close()

    def repeat_latest(self, broker: int) -> None:
        """Send the latest LeaderAndIsr to the next process of its broker, as if the reply had been lost."""
        command = self._latest.get(broker)
        if command is not None and self.process.is_alive and ApiKey.LEADER_AND_ISR in self.chances.copied:
            self._loop.spawn(self.process, lambda: self._deliver_copy(command, 0.0))

    def _link_to(self, broker: int) -> Link:
        return Link(
            lambda: address_of(broker),
            client_id="controller",
            loop=cast(asyncio.AbstractEventLoop, self._loop),
            api_versions=False,
            timeout_s=1.0,
        )


_DEFAULTS: Final[dict[ApiKey, dict[str, Any]]] = {
    ApiKey.LEADER_AND_ISR: {"is_kraft_controller": False, "type": 0},
    ApiKey.UPDATE_METADATA: {"is_kraft_controller": False, "type": 0},
    ApiKey.STOP_REPLICA: {"is_kraft_controller": False},
}


def _endpoint(broker: int) -> dict[str, Any]:
    host, port = address_of(broker)
    return {"port": port, "host": host, "listener": "PLAINTEXT", "security_protocol": 0}


__all__ = ["Chances", "Controller", "DeposedError"]
