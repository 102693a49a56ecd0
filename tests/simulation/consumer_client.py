"""A client of the consumer protocol (KIP-848), modelled on the Java consumer and on librdkafka's.

They differ after a heartbeat that was not answered in time: the Java consumer sends all fields again, librdkafka only
those that have changed.
"""

from dataclasses import replace
from typing import Any

from headrace.coordinator.groups.consumer.member import LEAVE_EPOCH, STATIC_LEAVE_EPOCH
from headrace.coordinator.groups.consumer.requests import ConsumerHeartbeat, ConsumerHeartbeatResult
from headrace.errors import ErrorCode, KafkaError
from tests.simulation.clients import (
    BACKOFF_S,
    HEARTBEAT_S,
    REBALANCE_S,
    RETRIABLE,
    Call,
    Client,
    FatalError,
    LostError,
    Script,
    TopicPartition,
)


class ConsumerClient(Client):
    kind = "consumer"

    def __init__(self, *arguments: Any) -> None:
        self._assigned: set[TopicPartition] = set()
        self._is_full_due = True
        self._is_subscription_due = False
        self._reported_owned: set[TopicPartition] | None = None
        self._revocation_deadline = float("inf")
        self._unanswered_since = float("inf")
        super().__init__(*arguments)
        self._is_librdkafka = self.random_losses.random() < 0.5

    def may_commit(self, partition: TopicPartition) -> bool:
        try:
            group = self.world.group()
            if group is None or group.is_classic:
                return False
            group.machine.known.check_offset_commit(self.member_id, self.epoch, self.world.with_ids([partition]))
        except KafkaError:
            return False
        return True

    def run(self) -> Script:
        self.member_id = f"{self.name}-{self.world.next_id()}"
        self.epoch = 0
        try:
            while not self.wants_to_leave:
                try:
                    yield from self._take_part()
                except LostError as lost:
                    self.world.note(f"{self.name} loses its membership: {lost.error.name}")
                    self.lose_everything()
                    self.epoch, self._is_full_due, self._assigned = 0, True, set()
            yield from self._leave()
        except FatalError as fatal:
            self.refusal = fatal.error
            self.lose_everything()
            self.world.note(f"{self.name} ends: {fatal.error.name}")

    def check_answer(self, answer: Any) -> None:
        if answer is ErrorCode.stale_member_epoch:
            return  # the next heartbeat returns the new epoch
        super().check_answer(answer)
        if isinstance(answer, ErrorCode) and answer not in RETRIABLE and answer is not ErrorCode.none:
            raise FatalError(answer)

    def _take_part(self) -> Script:
        while not self.wants_to_leave:
            answer = yield from self._heartbeat()
            if answer in RETRIABLE:
                yield BACKOFF_S
                continue
            if self._assigned != self.owned.keys():
                yield from self._reconcile()
                continue
            yield from self.fetching_positions()
            yield HEARTBEAT_S
            now = self.world.loop.now
            if now < self.stalls_until:
                if self.stalls_until - now > REBALANCE_S:
                    yield from self._leave()
                    yield self.stalls_until - self.world.loop.now
                    raise LostError(ErrorCode.unknown_member_id)
                continue
            self.process(HEARTBEAT_S)
            if self.is_commit_due:
                yield from self.committing(list(self.owned))

    def _reconcile(self) -> Script:
        """Revoke surplus partitions while sending heartbeats, then take the new ones."""
        surplus = [one for one in self.owned if one not in self._assigned]
        if surplus:
            yield from self.committing(surplus)
            # the coordinator has no timer for the revocation of partitions lost from its log
            is_timed = self.world.lost_partitions.isdisjoint(surplus)
            done_at = self.world.loop.now + self.world.revocation_delay(self, may_hang=is_timed)
            while self.world.loop.now < done_at:
                yield min(HEARTBEAT_S, done_at - self.world.loop.now)
                if self.world.loop.now < done_at and (yield from self._heartbeat()) in RETRIABLE:
                    yield BACKOFF_S
            for one in surplus:
                self.owned.pop(one, None)
        self.take(sorted(self._assigned))
        self._revocation_deadline = float("inf")

    def _heartbeat(self) -> Any:
        wanted = self.world.subscription_of(self)
        self._is_subscription_due |= wanted != self.topics
        self.topics = wanted
        is_full = self._is_full_due or self.epoch == 0
        owned = set(self.owned)
        sends_owned = is_full or owned != self._reported_owned
        request = ConsumerHeartbeat(
            member_id=self.member_id,
            new_member_id="",
            epoch=self.epoch,
            instance_id=self.instance_id,
            rack_id=None,
            client_id=self.name,
            client_host="/127.0.0.1",
            rebalance_timeout_ms=int(REBALANCE_S * 1000) if is_full else -1,
            topics=self.topics if is_full or self._is_subscription_due else None,
            regex=None,
            assignor=None,
            owned=self.world.with_ids(owned) if sends_owned else None,
            provides_member_id=True,
        )
        sent_at = self.world.loop.now
        self._unanswered_since = min(self._unanswered_since, sent_at)
        answer = yield Call(lambda _: self._ask_heartbeat(request))
        if not isinstance(answer, ConsumerHeartbeatResult):
            if answer is not ErrorCode.request_timed_out or not self._is_librdkafka:
                self._is_full_due = True
            if answer is not ErrorCode.unreleased_instance_id:
                self.check_answer(answer)
                return answer
            # the former holder of the instance id has not timed out yet
            self.refusal = answer
            self.world.note(f"{self.name} waits for its instance id")
            yield HEARTBEAT_S
            return ErrorCode.network_exception
        # a revocation may have started with a heartbeat whose answer was lost
        requested_at, self._unanswered_since = self._unanswered_since, float("inf")
        self._is_full_due, self._is_subscription_due, self.refusal = False, False, None
        self._reported_owned = owned if sends_owned else self._reported_owned
        self.confirmed_at = sent_at
        if answer.assignment is not None:
            self._assigned = self.world.with_names(answer.assignment)
            self.note_log_seen()
            if not self._assigned >= self.owned.keys():
                self._revocation_deadline = min(self._revocation_deadline, requested_at + REBALANCE_S)
        if answer.epoch != self.epoch or answer.assignment is not None:
            self.world.note(f"{self.name} gets epoch {answer.epoch}, {sorted(self._assigned)}")
        self.epoch = answer.epoch
        self.deadline = self._revocation_deadline
        return None

    def _ask_heartbeat(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResult:
        result = self.world.coordinator.consumer_heartbeat("g", request)
        if request.epoch == 0:
            # the former holder of the instance id is out, even if this answer is lost
            self.world.displace_others(self)
        return result

    def _leave(self) -> Script:
        try:
            yield from self.committing(list(self.owned))
        except (LostError, FatalError):
            pass
        self.lose_everything()
        if self.epoch > 0:
            request = ConsumerHeartbeat(
                member_id=self.member_id,
                new_member_id="",
                epoch=LEAVE_EPOCH if self.instance_id is None else STATIC_LEAVE_EPOCH,
                instance_id=self.instance_id,
                rack_id=None,
                client_id=self.name,
                client_host="/127.0.0.1",
                rebalance_timeout_ms=-1,
                topics=None,
                regex=None,
                assignor=None,
                owned=None,
                provides_member_id=True,
            )
            yield Call(lambda _: self.world.coordinator.consumer_heartbeat("g", replace(request)))
        self.epoch, self._assigned, self._is_full_due = 0, set(), True
        self.world.note(f"{self.name} has left")
