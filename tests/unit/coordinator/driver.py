"""Simulates the runtime for one classic group: timers on a fake clock, records and answers."""

import struct
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

from headrace.coordinator.groups.classic.group import ClassicGroup
from headrace.coordinator.groups.effects import Effect, Happening, JoinResult, Note, SyncResult, Timer
from headrace.coordinator.groups.records.classic import GroupMetadata
from headrace.coordinator.groups.requests import Join, Leaver, Sync
from headrace.coordinator.runtime.results import CancelTimer, Complete, ScheduleTimer, Write
from headrace.errors import ErrorCode, KafkaError

INITIAL_DELAY_MS = 3000
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def subscription(*topics: str) -> bytes:
    """Return the metadata of a consumer, version 1."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 1, len(topics)) + names + struct.pack(">ii", -1, 0)


class Driver:
    """A classic group, its clock in ms, and the effects that it requested."""

    def __init__(self, *, max_size: int = 100, initial_delay_ms: int = INITIAL_DELAY_MS) -> None:
        self.now = 1_000_000
        self.group = ClassicGroup("g", max_size=max_size, initial_rebalance_delay_ms=initial_delay_ms, now_ms=self.now)
        self.timers: dict[Timer, int] = {}
        self.fired: list[Timer] = []
        self.answers: dict[object, JoinResult | SyncResult] = {}
        self.records: list[GroupMetadata] = []
        self.timed_notes: list[tuple[Note, int]] = []
        """Notes with their times in ms."""
        self.append_error = ErrorCode.none
        self.held_appends: deque[Write] | None = None
        """A deque to delay appends until `finish_append`."""
        self._tokens = count()

    # Requests, which return the token of their answer

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        client_id: str = "c",
        protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("t")),),
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        version: int = 9,
    ) -> int:
        token = next(self._tokens)
        request = Join(
            reply_to=token,
            member_id=member_id,
            new_member_id=f"{instance_id or client_id}-{token}",
            instance_id=instance_id,
            client_id=client_id,
            client_host="/127.0.0.1",
            protocol_type=protocol_type,
            protocols=protocols,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
            reason="a test",
        )
        self._do(self.group.join(request, self.now).effects)
        return token

    def sync(
        self,
        member_id: str,
        assignments: dict[str, bytes] | None = None,
        *,
        generation: int | None = None,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        token = next(self._tokens)
        request = Sync(
            reply_to=token,
            member_id=member_id,
            instance_id=instance_id,
            generation=self.group.generation if generation is None else generation,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=assignments or {},
        )
        self._do(self.group.sync(request).effects)
        return token

    def heartbeat(self, member_id: str, *, generation: int | None = None, instance_id: str | None = None) -> ErrorCode:
        at = self.group.generation if generation is None else generation
        try:
            result = self.group.heartbeat(member_id, instance_id, at, self.now)
        except KafkaError as error:
            return error.code
        self._do(result.effects)
        return result.answer

    def leave(self, member_id: str, *, instance_id: str | None = None) -> ErrorCode:
        result = self.group.leave([Leaver(member_id=member_id, instance_id=instance_id, reason="a test")], self.now)
        self._do(result.effects)
        return result.answer[0]

    def commit(
        self, member_id: str = "", *, generation: int = -1, instance_id: str | None = None, transactional: bool = False
    ) -> ErrorCode:
        try:
            self.group.check_offset_commit(member_id, instance_id, generation, transactional=transactional)
        except KafkaError as error:
            return error.code
        return ErrorCode.none

    # Shortcuts

    def become_member(self, **kwargs: Any) -> tuple[str, int]:
        """Join twice, as current clients do; return the member id and the token of the parked join."""
        answer = self.join_answer(self.join(**kwargs))
        assert answer.error is ErrorCode.member_id_required
        return answer.member_id, self.join(answer.member_id, **kwargs)

    def stable(self, members: int = 1, **kwargs: Any) -> list[str]:
        """Make the group stable, and return its member ids, leader first. Members are assigned their own ids."""
        ids = [self.become_member(**kwargs)[0] for _ in range(members)]
        self.finish_initial_rebalance()
        self.sync_all()
        return ids

    def finish_initial_rebalance(self) -> None:
        while self.group.state == "PreparingRebalance":
            self.advance(INITIAL_DELAY_MS)

    def sync_all(self) -> None:
        for member in list(self.group.membership.members.values()):
            leads = member.member_id == self.group.membership.leader_id
            assignments = {member_id: member_id.encode() for member_id in self.group.membership.members}
            self.sync(member.member_id, assignments if leads else None, instance_id=member.instance_id)

    def static_member(self, instance_id: str, **kwargs: Any) -> str:
        """Add a static member, make the group stable, and return the member's id."""
        self.join(instance_id=instance_id, **kwargs)
        member_id = self.group.membership.static[instance_id]
        for other in list(self.group.membership.members.values()):
            if other.awaiting_join is None:
                self.join(other.member_id, instance_id=other.instance_id)
        self.finish_initial_rebalance()
        self.sync_all()
        return member_id

    # Answers and time

    def join_answer(self, token: int) -> JoinResult:
        answer = self.answers[token]
        assert isinstance(answer, JoinResult)
        return answer

    def sync_answer(self, token: int) -> SyncResult:
        answer = self.answers[token]
        assert isinstance(answer, SyncResult)
        return answer

    def is_parked(self, token: int) -> bool:
        return token not in self.answers

    @property
    def notes(self) -> list[Note]:
        return [note for note, _ in self.timed_notes]

    def happened(self) -> list[Happening]:
        return [note.what for note in self.notes]

    def advance(self, ms: int) -> None:
        """Advance the clock and fire the timers that are due."""
        until = self.now + ms
        while self.timers and min(self.timers.values()) <= until:
            timer = min(self.timers, key=self.timers.__getitem__)
            self.now = max(self.now, self.timers.pop(timer))
            self.fired.append(timer)
            assert len(self.fired) < 100_000, "a timer never stops"
            self._do(self.group.timer_fired(timer, self.now).effects)
        self.now = until

    def finish_append(self, error: ErrorCode = ErrorCode.none) -> None:
        assert self.held_appends
        self._do(self.held_appends.popleft().then(error, self.now))

    def _do(self, effects: Sequence[Any]) -> None:
        to_do: deque[Effect] = deque(effects)
        while to_do:
            effect = to_do.popleft()
            match effect:
                case ScheduleTimer():
                    self.timers[effect.timer] = self.now + effect.delay_ms
                case CancelTimer():
                    self.timers.pop(effect.timer, None)
                case Complete():
                    assert effect.reply_to not in self.answers, "answered twice"
                    self.answers[effect.reply_to] = effect.result
                case Note():
                    self.timed_notes.append((effect, self.now))
                case Write():
                    self.records += (value for _, value in effect.records)
                    if self.held_appends is not None:
                        self.held_appends.append(effect)
                    else:
                        to_do.extendleft(reversed(effect.then(self.append_error, self.now)))
        self.check()

    def check(self) -> None:
        """Assert the invariants between events."""
        if not self.held_appends:
            self.group.check()
        for member in self.group.membership.members.values():
            timer = Timer("heartbeat", member.member_id)  # type: ignore[arg-type]
            waits = member.awaiting_join is not None or member.awaiting_sync is not None
            assert waits or timer in self.timers, f"member {member.member_id} has no heartbeat timer"
        for member_id in self.group.membership.pending_joins:
            assert Timer("heartbeat", member_id) in self.timers  # type: ignore[arg-type]
