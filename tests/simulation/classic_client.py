"""A client of the classic protocol, modelled on the Java consumer: eager, cooperative, or switching between the two.
Leaders assign with `sticky`.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headrace.coordinator.groups.effects import JoinResult, SyncResult
from headrace.coordinator.groups.records.embedded import decode_assignment, encode_assignment
from headrace.coordinator.groups.requests import (
    Join,
    Leaver,
    Sync,
)
from headrace.errors import ErrorCode, KafkaError
from tests.simulation.clients import (
    BACKOFF_S,
    HEARTBEAT_S,
    REBALANCE_S,
    RETRIABLE,
    SESSION_S,
    Call,
    Client,
    FatalError,
    LostError,
    Reply,
    Script,
    TopicPartition,
)

PROTOCOLS: Final = {
    "eager": ("range",),
    "cooperative": ("cooperative-sticky",),
    "rolling": ("cooperative-sticky", "range"),
}
"""By kind of client. One with both protocols is eager, until all are restarted with the new one only."""


class Claim(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...]
    generation: int


class ClassicClient(Client):
    def __init__(self, *arguments: Any, kind: str) -> None:
        self.kind = kind
        self._counts: dict[str, int] = {}
        self._watched: tuple[str, ...] = ()
        """Topics whose partition counts it watches; for a leader, those of all members."""
        super().__init__(*arguments)

    @property
    def is_eager(self) -> bool:
        return self.kind != "cooperative"

    def may_commit(self, partition: TopicPartition) -> bool:
        try:
            group = self.world.group()
            if group is None:
                return False
            if group.is_classic:
                group.machine.check_offset_commit(self.member_id, self.instance_id, self.epoch)
            else:
                group.machine.known.check_offset_commit(self.member_id, self.epoch, self.world.with_ids([partition]))
        except KafkaError as error:
            return error.code is ErrorCode.rebalance_in_progress
        return True

    def run(self) -> Script:
        try:
            while not self.wants_to_leave:
                try:
                    yield from self._join()
                    yield from self._consume()
                except LostError as lost:
                    self._forget(lost.error)
            yield from self._leave()
        except FatalError as fatal:
            self.refusal = fatal.error
            self.lose_everything()
            self.world.note(f"{self.name} ends: {fatal.error.name}")

    def _forget(self, error: ErrorCode) -> None:
        self.world.note(f"{self.name} loses its membership: {error.name}")
        self.lose_everything()
        self.epoch = -1
        if error is ErrorCode.unknown_member_id:
            self.member_id = ""

    # Joining

    def _join(self) -> Script:
        while not self.wants_to_leave:
            if self.is_eager and self.owned:
                yield from self._revoke(list(self.owned))
            new_member_id = f"{self.name}-{self.world.next_id()}"
            self._counts = dict(self.world.topics.counts)
            sent_at = self.world.loop.now
            join = yield Call(lambda reply, new_id=new_member_id: self._ask_join(reply, new_id), REBALANCE_S + 5)  # type: ignore[misc]
            error = join if isinstance(join, ErrorCode) else join.error
            self.world.note(f"{self.name} joins: {error.name} {getattr(join, 'generation', '')}")
            if error is ErrorCode.none:
                assert isinstance(join, JoinResult)
                self.world.displace_others(self)
                self.member_id, self.epoch = join.member_id, join.generation
                self.confirmed_at = sent_at
                self.deadline = sent_at + REBALANCE_S
                if (yield from self._sync(join)):
                    return
                continue
            if error in RETRIABLE:
                yield BACKOFF_S
            elif error is ErrorCode.member_id_required:
                self.member_id = join.member_id
            elif error in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation):
                self._forget(error)
            elif error is not ErrorCode.rebalance_in_progress:
                raise FatalError(error)

    def _ask_join(self, reply: Reply, new_member_id: str) -> None:
        if len(self.world.clients) > self.world.settings.group_max_size:
            # as in Kafka, newcomers may replace the last to rejoin
            self.deadline = 0.0
        is_back = self.instance_id is not None and not self.member_id
        if is_back:
            self.world.restore_subscription(self)
        metadata = subscription(self.topics, tuple(self.owned), self.epoch)
        self.world.coordinator.join(
            "g",
            Join(
                reply_to=reply,
                member_id=self.member_id,
                new_member_id=new_member_id,
                instance_id=self.instance_id,
                client_id=self.name,
                client_host="/127.0.0.1",
                protocol_type="consumer",
                protocols=tuple((name, metadata) for name in PROTOCOLS[self.kind]),
                session_timeout_ms=int(SESSION_S * 1000),
                rebalance_timeout_ms=int(REBALANCE_S * 1000),
                requires_known_member_id=self.instance_id is None,
                supports_skipping_assignment=True,
                reason="simulated",
            ),
        )
        if is_back and not reply.is_refused:
            # the former holder of the instance id is out, even if this answer is lost
            self.world.displace_others(self)

    def _sync(self, join: JoinResult) -> Any:
        """Return True if the member has its assignment; otherwise it joins again."""
        assignments = {}
        claims = [_claim(member_id, metadata) for member_id, _, metadata in join.members]
        self._watched = tuple(sorted({*self.topics, *(topic for claim in claims for topic in claim.topics)}))
        if join.skip_assignment:
            self.world.skip_growth(self._counts)
        elif claims:
            self.world.record_assignment(self._counts)
            assigned = sticky(claims, self._counts, is_cooperative=join.protocol_name == "cooperative-sticky")
            assignments = {member_id: encode_assignment(_by_topic(each), 3) for member_id, each in assigned.items()}
        request = Sync(
            reply_to=None,
            member_id=self.member_id,
            instance_id=self.instance_id,
            generation=self.epoch,
            protocol_type=join.protocol_type,
            protocol_name=join.protocol_name,
            assignments=assignments,
        )
        sent_at = self.world.loop.now
        sync = yield Call(lambda reply: self.world.coordinator.sync("g", _with_reply(reply, request)), REBALANCE_S + 5)
        error = sync if isinstance(sync, ErrorCode) else sync.error
        if error is not ErrorCode.none:
            self.world.note(f"{self.name} syncs generation {self.epoch}: {error.name}")
            self.check_answer(error)
            if error in RETRIABLE:
                yield BACKOFF_S
            elif error is not ErrorCode.rebalance_in_progress:
                raise FatalError(error)
            return False
        assert isinstance(sync, SyncResult)
        self.note_log_seen()
        self.deadline = sent_at + REBALANCE_S
        partitions = decode_assignment(sync.assignment).partitions if sync.assignment else {}
        mine = {(topic, index) for topic, indexes in partitions.items() for index in indexes}
        self.world.note(f"{self.name} has {sorted(mine)} in generation {self.epoch}")
        surplus = [one for one in self.owned if one not in mine]
        if surplus:
            yield from self._revoke(surplus)
        self.take(sorted(mine))
        # assigning the revoked partitions takes another rebalance
        return not surplus

    def _revoke(self, partitions: Sequence[TopicPartition]) -> Script:
        yield from self.committing(partitions)
        yield self.world.revocation_delay(self)
        for one in partitions:
            self.owned.pop(one, None)

    # Between rebalances

    def _consume(self) -> Script:
        """Consume until the member has to rejoin or wants to leave."""
        yield from self.fetching_positions()
        while not self.wants_to_leave:
            yield HEARTBEAT_S
            is_stalled = self.world.loop.now < self.stalls_until
            if is_stalled and self.stalls_until - self.world.loop.now > REBALANCE_S:
                yield from self._leave()
                yield self.stalls_until - self.world.loop.now
                raise LostError(ErrorCode.unknown_member_id)
            if not is_stalled:
                self.process(HEARTBEAT_S)
                if self.is_commit_due:
                    yield from self.committing(list(self.owned))
                if self._wants_other_topics():
                    return
            sent_at = self.world.loop.now
            answer = yield Call(self._ask_heartbeat)
            if answer is ErrorCode.none:
                self.confirmed_at = sent_at
                self.deadline = sent_at + REBALANCE_S
            elif answer is ErrorCode.rebalance_in_progress:
                if self.world.loop.now >= self.stalls_until:
                    return
            else:
                self.check_answer(answer)

    def _ask_heartbeat(self, _: Reply) -> ErrorCode:
        return self.world.coordinator.heartbeat("g", self.member_id, self.instance_id, self.epoch)

    def _wants_other_topics(self) -> bool:
        counts = self.world.topics.counts
        return any(self._counts.get(topic) != counts.get(topic) for topic in self._watched) or self.resubscribes()

    def resubscribes(self) -> bool:
        """Return True if the application has changed its subscription since the last join."""
        wanted = self.world.subscription_of(self)
        if wanted == self.topics:
            return False
        self.topics = wanted
        return True

    def _leave(self) -> Script:
        try:
            yield from self.committing(list(self.owned))
        except (LostError, FatalError):
            pass
        self.lose_everything()
        if self.instance_id is None and self.member_id:
            leaver = Leaver(member_id=self.member_id, instance_id=None, reason="simulated")
            yield Call(lambda _: self.world.coordinator.leave("g", [leaver]))
        self.world.note(f"{self.name} has left")


# The assignor


def sticky(
    claims: Sequence[Claim], counts: Mapping[str, int], *, is_cooperative: bool
) -> dict[str, set[TopicPartition]]:
    """Balance partitions with few moves. If cooperative, leave those out that still have another owner."""
    owners: dict[TopicPartition, Claim] = {}
    for claim in sorted(claims, key=lambda each: (each.generation, each.member_id)):
        owners.update(dict.fromkeys(claim.owned, claim))
    readers: dict[str, list[str]] = {}
    for claim in sorted(claims):
        for topic in claim.topics:
            readers.setdefault(topic, []).append(claim.member_id)
    assigned: dict[str, set[TopicPartition]] = {claim.member_id: set() for claim in claims}
    free = []
    for topic in sorted(readers):
        for index in range(counts.get(topic, 0)):
            owner = owners.get((topic, index))
            if owner is not None and owner.member_id in readers[topic]:
                assigned[owner.member_id].add((topic, index))
            else:
                free.append((topic, index))
    for one in free:
        assigned[min(readers[one[0]], key=lambda each: (len(assigned[each]), each))].add(one)
    while move := _improvement(assigned, readers):
        giver, taker, one = move
        assigned[giver].remove(one)
        assigned[taker].add(one)
    if is_cooperative:
        for one, claim in owners.items():
            for member_id, partitions in assigned.items():
                if member_id != claim.member_id:
                    partitions.discard(one)
    return assigned


def _improvement(
    assigned: Mapping[str, set[TopicPartition]], readers: Mapping[str, list[str]]
) -> tuple[str, str, TopicPartition] | None:
    for giver, partitions in sorted(assigned.items(), key=lambda each: (-len(each[1]), each[0])):
        for one in sorted(partitions):
            taker = min(readers[one[0]], key=lambda each: (len(assigned[each]), each))
            if len(partitions) - len(assigned[taker]) > 1:
                return giver, taker, one
    return None


_INT32 = struct.Struct(">i")


def subscription(topics: Sequence[str], owned: Sequence[TopicPartition], generation: int) -> bytes:
    """Encode version 2 of the embedded subscription."""
    out = bytearray(struct.pack(">hi", 2, len(topics)))
    for topic in topics:
        out += struct.pack(">h", len(topic)) + topic.encode()
    out += _INT32.pack(-1)
    out += encode_assignment(_by_topic(owned), 0)[2:-4]
    return bytes(out + _INT32.pack(generation))


def _claim(member_id: str, metadata: bytes) -> Claim:
    from headrace.coordinator.groups.records.embedded import decode_subscription

    decoded = decode_subscription(metadata)
    owned = tuple((topic, index) for topic, indexes in decoded.owned for index in indexes)
    return Claim(member_id, decoded.topics, owned, _INT32.unpack(metadata[-4:])[0])


def _by_topic(partitions: Any) -> dict[str, list[int]]:
    out: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        out.setdefault(topic, []).append(index)
    return out


def _with_reply(reply: Reply, request: Sync) -> Sync:
    from dataclasses import replace

    return replace(request, reply_to=reply)
