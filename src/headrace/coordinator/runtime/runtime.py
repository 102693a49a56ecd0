"""Run a coordinator: execute the results of its state machines, run their timers, load and unload shards.

Every operation is decide -> append -> replay -> effects -> reply. Independent of record types.
"""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from headrace.clock import Clock
from headrace.coordinator.runtime.results import CancelTimer, Complete, Result, ScheduleTimer, Then, Write
from headrace.coordinator.runtime.shards import CoordinatorLog, LedShard, Shards, ShardState
from headrace.coordinator.runtime.timers import Timers
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.compression import Codec

log = logging.getLogger(__name__)

_RETRY_S: Final = 1.0
"""Delay before retrying a timer whose records could not be written."""


class Machine(ShardState, Protocol):
    """A shard's state machine. Names are group ids or transactional ids. The `str` of a timer is logged."""

    def loaded(self, now_ms: int) -> Iterable[tuple[str, Sequence[object]]]:
        """Return names and the effects of loading them."""

    def unloaded(self, error: ErrorCode, now_ms: int) -> Iterable[tuple[str, Sequence[object]]]:
        """Return names and the effects of unloading them, which answer parked requests with `error`."""

    def timer_fired(self, name: str, timer: Any, now_ms: int) -> Result[None]:
        """Handle the expiry of a timer; ignore names that no longer exist."""

    def append_failed(self, name: str) -> None:
        """Handle a failed write of the last records of `name`."""


S = TypeVar("S", bound=Machine)
A = TypeVar("A")


class Runtime(Generic[S]):
    """Shards of one internal topic. `perform` executes the effects that the coordinator defines.

    Its last argument is the time in wall-clock ms, which is the same for all effects of one decision.
    """

    def __init__(
        self,
        topic: str,
        partition_count: int,
        make_state: Callable[[], S],
        *,
        codec: Codec,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        perform: Callable[[LedShard[S], str, Any, int], None],
    ) -> None:
        self.shards: Shards[S] = Shards(
            topic, partition_count, make_state, codec=codec, loop=loop, clock=clock, on_loaded=self._loaded
        )
        self._loop = loop
        self._clock = clock
        self._perform = perform
        self._timers: Timers[tuple[str, Hashable]] = Timers()
        self._handle: asyncio.TimerHandle | None = None
        self._handle_at = 0.0

    # Leadership

    def elected(self, partition: int, coordinator_log: CoordinatorLog) -> None:
        self.shards.lead(partition, coordinator_log)

    def resigned(self, partition: int) -> LedShard[S] | None:
        """Drop and return a shard that this broker no longer leads; answer parked requests with not_coordinator."""
        shard = self.shards.drop(partition)
        if shard is not None:
            for name, effects in shard.state.unloaded(ErrorCode.not_coordinator, self._clock.wall_ms()):
                self.act(shard, name, effects)
        return shard

    def close(self) -> None:
        """Answer parked requests and stop all timers."""
        for partition in self.shards.partitions():
            self.resigned(partition)
        if self._handle is not None:
            self._handle.cancel()

    def _loaded(self, shard: LedShard[S]) -> None:
        for name, effects in shard.state.loaded(self._clock.wall_ms()):
            self.act(shard, name, effects)

    # Results

    def carry_out(self, shard: LedShard[S], name: str, result: Result[A]) -> A:
        """Write and replay the records, execute the effects, and return the reply.

        Raises the KafkaError of a failed append before any effect, or that of the result after all effects.
        """
        if result.records:
            try:
                self.shards.append_and_replay(shard, result.records)
            except KafkaError:
                shard.state.append_failed(name)
                raise
        self.act(shard, name, result.effects)
        if result.error is not None:
            raise result.error
        return result.answer

    def act(self, shard: LedShard[S], name: str, effects: Iterable[object]) -> None:
        """Execute effects in order, including those that they return."""
        self._act(shard, name, effects, self._clock.wall_ms())

    def _act(self, shard: LedShard[S], name: str, effects: Iterable[object], at_ms: int) -> None:
        for effect in effects:
            if isinstance(effect, ScheduleTimer):
                self._schedule(name, effect)
            elif isinstance(effect, CancelTimer):
                self._timers.cancel((name, effect.timer))
            elif isinstance(effect, Complete):
                _answer(effect.reply_to, effect.result)
            elif isinstance(effect, Write):
                self._act(shard, name, self._write(shard, name, effect), at_ms)
            elif isinstance(effect, Then):
                self._act(shard, name, effect.follow(at_ms), at_ms)
            else:
                self._perform(shard, name, effect, at_ms)

    def _write(self, shard: LedShard[S], name: str, effect: Write) -> Sequence[object]:
        error = ErrorCode.none
        try:
            self.shards.append(shard, effect.records, self._clock.wall_ms())
        except KafkaError as failure:
            log.warning("%s: the records of group %s could not be written: %s", shard.name, name, failure)
            error = failure.code
        return effect.then(error, self._clock.wall_ms())

    # Timers

    def _schedule(self, name: str, effect: ScheduleTimer[Any]) -> None:
        key = name, effect.timer
        if effect.may_run_already and key in self._timers:
            return
        if self._timers.schedule(key, self._loop.time() + max(effect.delay_ms, 0) / 1000):
            self._arm()

    def _arm(self) -> None:
        at = self._timers.next_deadline
        if at is None or (self._handle is not None and self._handle_at <= at):
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle_at = at
        self._handle = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._handle = None
        for name, timer in self._timers.expired(self._loop.time()):
            try:
                shard = self.shards.of(name)
            except KafkaError:
                continue  # its shard has moved, or is being loaded
            try:
                self.carry_out(shard, name, shard.state.timer_fired(name, timer, self._clock.wall_ms()))
            except KafkaError as error:
                text = "%s: the %s timer of group %s failed and will be retried: %s"
                log.warning(text, shard.name, timer, name, error)
                self._timers.schedule((name, timer), self._loop.time() + _RETRY_S)
            except Exception:
                text = "%s: the %s timer of group %s failed: this is a bug, please report it"
                log.exception(text, shard.name, timer, name)
        self._arm()


def _answer(future: Any, result: object) -> None:
    if not future.done():
        future.set_result(result)
