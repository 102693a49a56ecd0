"""The common part of simulated clients: a slow and lossy connection to the coordinator, pauses, positions, commits.

A client is a generator. It yields the seconds to sleep, or a request, and is sent the answer.
"""

import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.coordinator.groups.records.offsets import CommittedOffset
from headrace.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from tests.simulation.world import World

TopicPartition: TypeAlias = tuple[str, int]

SESSION_S: Final = 10.0
REBALANCE_S: Final = 15.0
HEARTBEAT_S: Final = 3.0
COMMIT_S: Final = 6.0
REQUEST_TIMEOUT_S: Final = 8.0
BACKOFF_S: Final = 0.3

RETRIABLE: Final = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.not_coordinator,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
    }
)
"""After these errors a client looks up the coordinator again."""


@dataclass
class Call:
    """A request. `ask` calls the coordinator and returns the answer, or None if the coordinator answers its reply."""

    ask: "Callable[[Reply], Any]"
    timeout: float = REQUEST_TIMEOUT_S


Script: TypeAlias = "Generator[float | Call, Any, None]"


class LostError(Exception):
    """The member lost its membership or generation: it drops its partitions and joins again."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


class FatalError(Exception):
    """The member is refused for good, and ends."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.error = error


class Reply:
    """Replaces the future of a request, which the coordinator answers once unless its connection is gone."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self.is_done = False
        self.is_refused = False
        self.log_seen: tuple[int, int] | None = None
        """End of the log and its number of losses when the coordinator answered."""

    def done(self) -> bool:
        return self.is_done

    def set_result(self, result: Any) -> None:
        assert not self.is_done, "a request is answered once"
        self.is_done = True
        self.is_refused = getattr(result, "error", ErrorCode.none) is not ErrorCode.none
        if self._client.world.is_up:
            self.log_seen = (self._client.world.log.end, len(self._client.world.losses))
        self._client.answered(self, result)


class Client:
    """A consumer process of some `kind`."""

    kind = ""

    def __init__(self, world: "World", name: str, topics: tuple[str, ...], instance_id: str | None, seed: str) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.instance_id = instance_id
        self.random = random.Random(seed)
        self.random_losses = random.Random(f"{seed} losses")
        self.member_id = ""
        self.epoch = -1
        """The generation or member epoch."""
        self.owned: dict[TopicPartition, int | None] = {}
        """Position by partition; None until the committed offset is known."""
        self.refusal: ErrorCode | None = None
        """The error that ended it or makes it wait."""
        self.is_alive = True
        self.wants_to_leave = False
        self.is_displaced = False
        """True if an administrator removed it, or another process has its instance id."""
        self.stalls_until = 0.0
        self.log_end_seen = 0
        """End of the log when it last got an assignment."""
        self.losses_seen = 0
        """Number of losses of the log by then."""
        self.lost_partitions: set[TopicPartition] = set()
        """Owned partitions that the log has lost, which the client may read until it learns of the loss."""
        self.confirmed_at = 0.0
        """Send time of the last request that confirmed its membership."""
        self.deadline = 0.0
        """Its partitions are safe until this time, by which it has to revoke some or rejoin."""
        self._paused_until = 0.0
        self._last_commit = 0.0
        self._script: Script = self.run()
        self._pending: Reply | None = None
        self._log_seen = (0, 0)
        self._resume(None)

    def run(self) -> Script:
        raise NotImplementedError

    # Events

    def pause(self, seconds: float) -> None:
        """Stop the whole process."""
        self._paused_until = self.world.loop.now + seconds

    def stall(self, seconds: float) -> None:
        """Stop polling, but not the heartbeats."""
        self.stalls_until = self.world.loop.now + seconds

    def crash(self) -> None:
        """End without leaving the group."""
        self.is_alive = False
        self._pending = None
        self._script.close()
        self.owned.clear()

    def leave(self) -> None:
        self.wants_to_leave = True

    def disconnect(self) -> None:
        """Break the connection: the coordinator's process ended."""
        if self._pending is not None:
            self._pending.is_done = True
            self.world.loop.call_later(self._latency(), self._receive, self._pending, ErrorCode.network_exception)

    # Ownership

    @property
    def is_tainted(self) -> bool:
        """True if the log has lost its latest assignment."""
        return any(end < self.log_end_seen for end in self.world.losses[self.losses_seen :])

    @property
    def is_sure(self) -> bool:
        """True if the protocol guarantees that its partitions have no other owner."""
        now = self.world.loop.now
        return (
            not self.is_tainted
            and not self.is_displaced
            and now < self.deadline
            and now < self.confirmed_at + SESSION_S
        )

    def may_commit(self, partition: TopicPartition) -> bool:
        """Return True if the coordinator would accept its commit."""
        raise NotImplementedError

    # The script

    def _resume(self, value: Any) -> None:
        if not self.is_alive:
            return
        now = self.world.loop.now
        if now < self._paused_until:
            self.world.loop.call_at(self._paused_until, self._resume, value)
            return
        try:
            wanted = self._script.send(value)
        except StopIteration:
            self.is_alive = False
            return
        if isinstance(wanted, Call):
            self._send(wanted)
        else:
            self.world.loop.call_later(wanted, self._resume, None)

    def _latency(self) -> float:
        slow = self.world.is_faulty and self.random.random() < 0.03
        return self.random.uniform(0.5, 4.0) if slow else self.random.uniform(0.001, 0.02)

    def _send(self, call: Call) -> None:
        reply = self._pending = Reply(self)
        fate = self.random.random() if self.world.is_faulty else 1.0
        if fate < 0.01:
            self.world.loop.call_later(self._latency(), self._receive, reply, self._loss())
            return
        if fate < 0.02:
            # the request arrives, and the connection breaks before the answer
            self.world.loop.call_later(self._latency(), self._deliver, call, Reply(_BrokenConnection(self)), reply)
            return
        self.world.loop.call_later(self._latency(), self._deliver, call, reply, None)

    def _deliver(self, call: Call, reply: Reply, broken: Reply | None) -> None:
        if self._pending is not reply and self._pending is not broken:
            return  # lost with the connection
        if reply.is_done:
            return
        if not self.world.is_up:
            reply.set_result(ErrorCode.network_exception)
        else:
            try:
                answer = call.ask(reply)
            except KafkaError as error:
                answer = error.code
            self.world.check_machine()
            if answer is not None:
                reply.set_result(answer)
            elif not reply.is_done:
                self.world.loop.call_later(call.timeout, self._receive, reply, ErrorCode.network_exception)
        if broken is not None:
            self.world.loop.call_later(self._latency(), self._receive, broken, self._loss())

    def _loss(self) -> ErrorCode:
        """Return what the client notices of a lost request or reply: a broken connection, or nothing in time."""
        return self.random_losses.choice((ErrorCode.network_exception, ErrorCode.request_timed_out))

    def answered(self, reply: Reply, result: Any) -> None:
        self.world.loop.call_later(self._latency(), self._receive, reply, result)

    def _receive(self, reply: Reply, result: Any) -> None:
        if self._pending is reply:
            self._pending = None
            self._log_seen = reply.log_seen or self._log_seen
            self._resume(result)

    # Both protocols

    def committing(self, partitions: Iterable[TopicPartition]) -> Script:
        """Commit positions, ignoring retriable errors. Raises LostError or FatalError."""
        offsets = {one: position for one in partitions if (position := self.owned.get(one)) is not None}
        self._last_commit = self.world.loop.now
        if not offsets:
            return
        member_id, epoch = self.member_id, self.epoch
        answer = yield Call(lambda _: self.world.commit(self, member_id, epoch, offsets))
        self.world.note(f"{self.name} commits {_shown(offsets)}: {_answer_name(answer)}")
        self.check_answer(answer)

    def check_answer(self, answer: Any) -> None:
        """Raise LostError or FatalError if the coordinator no longer accepts the member."""
        if answer in (ErrorCode.unknown_member_id, ErrorCode.illegal_generation, ErrorCode.fenced_member_epoch):
            raise LostError(answer)
        if answer is ErrorCode.fenced_instance_id:
            raise FatalError(answer)

    def fetching_positions(self) -> Script:
        """Fetch the committed offsets of new partitions."""
        while any(position is None for position in self.owned.values()) and not self.wants_to_leave:
            answer = yield Call(lambda _: self.world.committed_offsets())
            if isinstance(answer, ErrorCode):
                yield BACKOFF_S
                continue
            for (topic, index), position in list(self.owned.items()):
                if position is None:
                    found: CommittedOffset | None = answer.get(topic, {}).get(index)
                    self.owned[topic, index] = 0 if found is None else found.offset

    def process(self, seconds: float) -> None:
        """Advance the positions, as an application does."""
        for one, position in self.owned.items():
            if position is not None:
                self.owned[one] = position + 1 + int(self.random.random() * 3 * seconds)

    @property
    def is_commit_due(self) -> bool:
        return self.world.loop.now >= self._last_commit + COMMIT_S

    def take(self, partitions: Iterable[TopicPartition]) -> None:
        """Own all of `partitions`, and start to read the new ones."""
        partitions = list(partitions)
        self.lost_partitions.difference_update(partitions)
        for one in partitions:
            if one not in self.owned:
                self.owned[one] = None
                self.world.check_owners(self, one)

    def note_log_seen(self) -> None:
        self.log_end_seen, self.losses_seen = self._log_seen

    def lose_everything(self) -> None:
        self.owned.clear()
        self.lost_partitions.clear()
        self.is_displaced = False


class _BrokenConnection(Client):
    """The receiver of answers to a broken connection."""

    def __init__(self, client: Client) -> None:
        self.world = client.world

    def answered(self, reply: Reply, result: Any) -> None:
        pass


def _shown(offsets: dict[TopicPartition, int]) -> str:
    return " ".join(f"{topic}-{index}@{offset}" for (topic, index), offset in sorted(offsets.items()))


def _answer_name(answer: Any) -> str:
    return answer.name if isinstance(answer, ErrorCode) else "ok"
