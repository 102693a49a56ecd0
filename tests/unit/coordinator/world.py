"""A coordinator of groups of both protocols over a log in memory."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.coordinator.groups.effects import Note
from headrace.coordinator.groups.records.offsets import CommittedOffset
from headrace.coordinator.groups.requests import Join, Sync
from headrace.coordinator.groups.settings import GroupSettings
from headrace.errors import ErrorCode, KafkaError
from tests.unit.coordinator.driver import subscription
from tests.unit.coordinator.fake_loop import FakeLoop, Reply
from tests.unit.coordinator.fake_topics import FakeTopics
from tests.unit.coordinator.memory_log import MemoryLog

SETTINGS = GroupSettings(offsets_topic_num_partitions=1, group_initial_rebalance_delay_ms=0)


class World:
    """A coordinator with one shard."""

    def __init__(self, log: MemoryLog | None = None, settings: GroupSettings = SETTINGS) -> None:
        self.loop = FakeLoop()
        self.log = log or MemoryLog()
        self.topics = FakeTopics(t=4, u=4)
        self.notes: list[Note] = []
        self.coordinator = GroupCoordinator(
            settings, self.loop.as_loop(), self.topics, lambda _group_id, note, _now_ms: self.notes.append(note)
        )
        self.coordinator.elected(0, self.log)
        self.loop.advance(0)
        self._ids = 0

    def join(self, member_id: str = "", *, group_id: str = "g", instance_id: str | None = None, **kwargs: Any) -> Any:
        reply = Reply()
        self._ids += 1
        options: dict[str, Any] = {
            "protocol_type": "consumer",
            "protocols": (("range", subscription("t")),),
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 60_000,
            "requires_known_member_id": True,
            **kwargs,
        }
        request = Join(
            reply_to=reply,
            member_id=member_id,
            new_member_id=f"m{self._ids}",
            instance_id=instance_id,
            client_id="app",
            client_host="/127.0.0.1",
            supports_skipping_assignment=True,
            reason="a test",
            **options,
        )
        self.coordinator.join(group_id, request)
        return reply

    def sync(self, member_id: str, generation: int, assignments: dict[str, bytes] | None = None) -> Any:
        reply = Reply()
        request = Sync(
            reply_to=reply,
            member_id=member_id,
            instance_id=None,
            generation=generation,
            protocol_type=None,
            protocol_name=None,
            assignments=assignments or {},
        )
        self.coordinator.sync("g", request)
        return reply

    def member(self) -> str:
        """Return the id of the only member of a stable group."""
        member_id: str = self.join().result.member_id
        joined = self.join(member_id)
        self.loop.advance(0)
        self.sync(member_id, joined.result.generation, {member_id: b"mine"})
        return member_id

    def commit(self, offset: int = 5, *, group_id: str = "g", member_id: str = "", generation: int = -1) -> None:
        offsets = [("t", 0, CommittedOffset(offset, -1, "", 0))]
        assert self.coordinator.commit_offsets(group_id, member_id, None, generation, offsets) == [ErrorCode.none]

    def offset(self, group_id: str = "g") -> int | None:
        committed = self.coordinator.committed_offsets(group_id).get("t", {}).get(0)
        return None if committed is None else committed.offset

    def restarted(self) -> "World":
        """Return another coordinator with a copy of the log."""
        return World(MemoryLog(list(self.log.stored)))


def refusal(call: Callable[..., object], *arguments: Any, **named: Any) -> ErrorCode:
    """Return the error of a call that must fail."""
    with pytest.raises(KafkaError) as raised:
        call(*arguments, **named)
    return raised.value.code


def beat(world: World, member_id: str = "a", epoch: int = 0, **changes: Any) -> ConsumerHeartbeatResult:
    fields: dict[str, Any] = {
        "member_id": member_id,
        "new_member_id": "generated",
        "epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "client_id": "app",
        "client_host": "/127.0.0.1",
        "rebalance_timeout_ms": 60_000,
        "topics": ("t",),
        "regex": None,
        "assignor": None,
        "owned": frozenset(),
        "provides_member_id": True,
    }
    return world.coordinator.consumer_heartbeat("g", ConsumerHeartbeat(**{**fields, **changes}))
