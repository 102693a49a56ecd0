"""Simulates the members of one consumer group, its timers and its log."""

from dataclasses import dataclass, field
from typing import Any

from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.consumer.member import LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.coordinator.groups.consumer.state import ConsumerGroupState
from headrace.coordinator.groups.effects import Timer, TimerKind
from headrace.coordinator.groups.records.consumer import (
    ConsumerKey,
    ConsumerValue,
    Partitions,
    TopicIdPartition,
    decode_consumer_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.runtime.results import CancelTimer, Result, ScheduleTimer
from headrace.errors import ErrorCode, KafkaError
from tests.unit.coordinator.fake_topics import FakeTopics, topic_id

REBALANCE_TIMEOUT_MS = 60_000
_FENCED = (ErrorCode.fenced_member_epoch, ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id)


@dataclass
class Client:
    """The state of a consumer."""

    member_id: str
    topics: tuple[str, ...] = ("t",)
    regex: str | None = None
    instance_id: str | None = None
    assignor: str | None = None
    epoch: int = 0
    assignment: Partitions = frozenset()
    owned: Partitions = field(default_factory=frozenset)


class ConsumerDriver:
    """A consumer group with its environment. Invariants are checked after every step."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        self.settings = settings or GroupSettings()
        self.topics = FakeTopics(t=4, u=3)
        self.group = ConsumerGroup("g", self.settings, self.topics)
        self.log: list[tuple[bytes, bytes | None]] = []
        self.timers: dict[Timer, int] = {}
        self.clients: dict[str, Client] = {}
        self.now_ms = 1_000_000

    def join(self, member_id: str, *topics: str, **more: Any) -> Client:
        """Return a client that has sent its first heartbeat."""
        client = Client(member_id, topics or ("t",), **more)
        self.beat(client)
        self.clients[member_id] = client
        return client

    def beat(self, client: Client, *, is_lost: bool = False, **changes: Any) -> ConsumerHeartbeatResult:
        """Send one heartbeat; the client does not get the response if `is_lost`."""
        fields: dict[str, Any] = {
            "member_id": client.member_id,
            "new_member_id": "generated",
            "epoch": client.epoch,
            "instance_id": client.instance_id,
            "rack_id": None,
            "client_id": "app",
            "client_host": "/127.0.0.1",
            "rebalance_timeout_ms": REBALANCE_TIMEOUT_MS,
            "topics": client.topics,
            "regex": client.regex,
            "assignor": client.assignor,
            "owned": client.owned if client.epoch > 0 else frozenset(),
            "provides_member_id": True,
        }
        request = ConsumerHeartbeat(**{**fields, **changes})
        request.check("g", self.settings.group_consumer_assignors)
        outcome = self.group.consumer_heartbeat(request, self.now_ms)
        self.carry_out(outcome)
        if not is_lost:
            client.epoch = outcome.answer.epoch
            if outcome.answer.assignment is not None:
                client.assignment = outcome.answer.assignment
        return outcome.answer

    def beat_or_rejoin(self, client: Client, *, is_lost: bool = False) -> None:
        """Send one heartbeat; a fenced client drops its partitions and rejoins."""
        try:
            self.beat(client, is_lost=is_lost)
        except KafkaError as error:
            if error.code not in _FENCED:
                raise
            client.epoch, client.assignment, client.owned = 0, frozenset(), frozenset()
            self.beat(client)

    def apply_assignment(self, client: Client) -> None:
        """Let the client own exactly its assigned partitions."""
        client.owned = client.assignment
        self.check()

    def leave(self, client: Client) -> None:
        is_static = client.instance_id is not None
        self.beat(client, epoch=STATIC_LEAVE_EPOCH if is_static else LEAVE_EPOCH)
        self.clients.pop(client.member_id, None)

    def settle(self) -> None:
        """Send heartbeats and apply assignments until the group is stable."""
        for _ in range(4 + 2 * len(self.clients)):
            self.pass_time(self.settings.group_consumer_assignment_interval_ms)
            for client in list(self.clients.values()):
                self.beat_or_rejoin(client)
                self.apply_assignment(client)
        away = [member for member in self.group.known.members.values() if member.epoch == STATIC_LEAVE_EPOCH]
        if self.clients and not away:
            assert self.group.state is ConsumerGroupState.STABLE, "the group is not stable"
            for client in self.clients.values():
                assert client.owned == self.group.known.target.get(client.member_id, frozenset())

    def pass_time(self, ms: int) -> None:
        """Advance the clock and fire the timers that are due."""
        until = self.now_ms + ms
        while due := [timer for timer, at in self.timers.items() if at <= until]:
            timer = min(due, key=lambda each: self.timers[each])
            self.now_ms = max(self.now_ms, self.timers.pop(timer))
            outcome = self.group.timer_fired(timer, self.now_ms)
            if timer.kind is not TimerKind.ASSIGNMENT and outcome.records:
                # A client without its coordinator for so long stops reading.
                client = self.clients.pop(timer.member_id, None)
                if client is not None:
                    client.owned = frozenset()
            self.carry_out(outcome)
        self.now_ms = until

    def carry_out(self, outcome: Result[Any]) -> None:
        for key, value in outcome.records:
            record = encode_key(key), None if value is None else encode_value(value)
            self.log.append(record)
            replay(self.group, *record)
        for effect in outcome.effects:
            if isinstance(effect, ScheduleTimer):
                self.timers[effect.timer] = self.now_ms + effect.delay_ms
            elif isinstance(effect, CancelTimer):
                self.timers.pop(effect.timer, None)
        self.check()

    def reload(self) -> None:
        """Continue with another coordinator that reads the log."""
        before = self.group
        self.group = ConsumerGroup("g", self.settings, self.topics)
        for record in self.log:
            replay(self.group, *record)
        for name in ("epoch", "assignment_epoch", "members", "target", "regexes", "owners", "instances"):
            assert getattr(self.group.known, name) == getattr(before.known, name), f"{name} differs after a replay"
        self.timers.clear()
        self.carry_out(Result(None, effects=self.group.loaded(self.now_ms)))

    def check(self) -> None:
        self.group.check()
        owners: dict[TopicIdPartition, str] = {}
        for client in self.clients.values():
            for partition in client.owned:
                assert partition not in owners, f"{owners[partition]} and {client.member_id} both own {partition}"
                owners[partition] = client.member_id

    def records(self) -> list[tuple[ConsumerKey, ConsumerValue | None]]:
        """Return the decoded log."""
        return [decoded(*record) for record in self.log]


def decoded(key: bytes, value: bytes | None) -> tuple[ConsumerKey, ConsumerValue | None]:
    decoded_key = decode_consumer_key(key)
    assert decoded_key is not None
    return decoded_key, None if value is None else decode_value(decoded_key, value)


def replay(group: ConsumerGroup, key: bytes, value: bytes | None) -> None:
    group.known.replay(*decoded(key, value))


def partitions(topic: str, *indexes: int) -> Partitions:
    return frozenset(TopicIdPartition(topic_id(topic), index) for index in indexes)
