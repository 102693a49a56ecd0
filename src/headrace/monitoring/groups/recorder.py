"""Record the history of groups: take samples at an interval, buffer events, and write both in a thread.

The event loop runs only short slices. A separate thread reads and writes files, so that no commit or fsync of a log
waits for the history.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from headrace.clock import now_ms
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.effects import Happening, Note
from headrace.coordinator.groups.group import Group
from headrace.coordinator.groups.subscriptions import Topics
from headrace.errors import KafkaError
from headrace.monitoring.groups.events import MAX_NAME, Event, event_of
from headrace.monitoring.groups.sampler import GroupSampler, Reset, Wanted, learn, look_up_times, scan
from headrace.monitoring.groups.store import HistoryStore
from headrace.monitoring.groups.worker import Worker
from headrace.replication.replica import Replica
from headrace.slices import Steps, run_slice

log = logging.getLogger(__name__)

T = TypeVar("T")

_SLICE_S: Final = 0.002
"""A sweep yields to the event loop after this time."""
_PAUSE_S: Final = 0.002
_EVENT_DELAY_S: Final = 1.0
"""Delay before events are written. A crash loses at most the events of this time."""
_MAX_EVENTS: Final = 20_000
"""Maximum number of events that wait for the thread; further events are counted and dropped."""
_FIRST_PAUSE_S: Final = 1.0
_PRUNE_INTERVAL_S: Final = 60.0
_TOUCH_INTERVAL_S: Final = 3600.0
_STOP_S: Final = 5.0
"""Maximum time to wait, when the broker stops, for the thread to finish its work and to write the last events."""


class GroupHistory:
    """The history of all groups of this broker. The coordinator calls `observe`."""

    def __init__(
        self,
        path: Path,
        *,
        interval_ms: int,
        retention_ms: int,
        max_bytes: int,
        assumed_reset: Reset = Reset.EARLIEST,
    ) -> None:
        self._interval_s = interval_ms / 1000
        self._assumed_reset = assumed_reset
        self.store = HistoryStore(path, max_bytes=max_bytes, retention_ms=retention_ms)
        self._thread = Worker("headrace-history")
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._write_handle: asyncio.TimerHandle | None = None
        self._write: asyncio.Task[None] | None = None
        """The write in progress. There is only one at a time: meanwhile, events wait in `_events`, up to the limit."""
        self._task: asyncio.Task[None] | None = None
        self.rebalances: dict[str, int] = {}
        """Number of rebalances that began since the broker started, by group."""
        self.events_lost = 0
        self._resets = 0
        """Number of damaged files replaced, at the last sample."""

    def start(
        self, coordinator: GroupCoordinator, topics: Topics, partition: Callable[[str, int], Replica | None]
    ) -> None:
        self.coordinator = coordinator
        self.sampler = GroupSampler(coordinator.groups_with_offsets, topics, partition, self._assumed_reset)
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """Write the remaining events, and close the file. If that takes too long, give up with a warning."""
        if self._write_handle is not None:
            self._write_handle.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.store.stop()
        try:
            async with asyncio.timeout(_STOP_S):
                await self.flush()
                await self.in_thread(self.store.close)
        except TimeoutError:
            log.warning("The history of groups was still busy after %.0f s: its last events are lost", _STOP_S)
            self.store.interrupt()
            self.events_lost += len(self._events)
            self._events.clear()
            if (write := self._write) is not None:
                write.cancel()
                await asyncio.gather(write, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    def observe(self, group_id: str, note: Note, at_ms: int) -> None:
        """Record an event of a group."""
        if note.what in (Happening.REBALANCING, Happening.BUMPED):
            self.rebalances[group_id] = self.rebalances.get(group_id, 0) + 1
        elif note.what is Happening.DELETED:
            self.rebalances.pop(group_id, None)
        if len(group_id) > MAX_NAME:
            return
        if len(self._events) >= _MAX_EVENTS:
            self.events_lost += 1
            return
        self._events.append(event_of(group_id, note, at_ms))
        self._write_soon()

    async def flush(self) -> None:
        """Write all buffered events to the file. Cancelling this does not cancel the write."""
        if self._write is not None:
            await asyncio.shield(self._write)
        self._start_write()
        if self._write is not None:
            await asyncio.shield(self._write)

    async def refresh(self, group: Group) -> None:
        wanted: list[Wanted] = []
        offsets = self.coordinator.committed_offsets(group.group_id)
        await self._in_slices(self.sampler.sweep_one(group, offsets, now_ms(), wanted))
        await self._look_up_times(wanted)

    async def sample(self) -> None:
        """Take a sample of all groups and write the changes."""
        wanted: list[Wanted] = []
        changed: list[tuple[str, str, bytes]] = []
        at_ms = now_ms()
        await self._in_slices(self.sampler.sweep(at_ms, wanted))
        await self._look_up_times(wanted)
        await self._in_slices(self.sampler.changed(at_ms, changed))
        self.sampler.write_again(await self.in_thread(lambda: self.store.write_sample(at_ms, changed)))
        if self._resets != self.store.resets:  # the new file has no states of idle groups
            self._resets = self.store.resets
            self.sampler.write_all_again()

    async def _in_slices(self, steps: Iterable[None]) -> None:
        deadline = time.monotonic() + _SLICE_S
        for _ in steps:
            if time.monotonic() >= deadline:
                await asyncio.sleep(_PAUSE_S)
                deadline = time.monotonic() + _SLICE_S

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Run `work`, which blocks on the disk, in the history's thread. Calls run one after another."""
        return await self._loop.run_in_executor(self._thread, work)

    async def steps_in_thread(self, steps: Steps[T]) -> T:
        """Run long work in the history's thread, in slices: other work gets its turn in between."""
        while True:
            done = await self.in_thread(lambda: run_slice(steps))
            if done is not None:
                return done.result

    async def _look_up_times(self, wanted: list[Wanted]) -> None:
        if wanted:
            found = await self.in_thread(lambda: look_up_times(wanted))
            await self._in_slices(_set_times(found))
        if scans := self.sampler.take_scans():
            learn(await self.in_thread(lambda: scan(scans)))

    async def _run(self) -> None:
        await self._until_loaded()
        # The first sample must also report the groups and topics that disappeared while the broker was down.
        self.sampler.add_earlier(await self.in_thread(self.store.series))
        next_prune = next_touch = 0.0
        while True:
            try:
                await self.sample()
                now = self._loop.time()
                if now >= next_touch:
                    next_touch = now + _TOUCH_INTERVAL_S
                    await self._touch()
                if now >= next_prune:
                    next_prune = now + _PRUNE_INTERVAL_S
                    await self.in_thread(lambda: self.store.prune(now_ms()))
            except Exception:
                log.exception("Sampling offsets of groups failed; trying again (this is a bug, please report it)")
            await asyncio.sleep(self._interval_s)

    async def _until_loaded(self) -> None:
        """Wait until the coordinator has loaded all groups. Pauses before each check, to serve clients first."""
        while True:
            await asyncio.sleep(min(self._interval_s, _FIRST_PAUSE_S))
            try:
                next(self.coordinator.groups(), None)
            except KafkaError:
                continue
            return

    async def _touch(self) -> None:
        live = self.sampler.live()
        self.sampler.write_again(await self.in_thread(lambda: self.store.touch(live, now_ms())))
        existing = {group.group_id for group, _ in self.coordinator.groups_with_offsets()}
        self.rebalances = {name: count for name, count in self.rebalances.items() if name in existing}

    def _write_soon(self) -> None:
        if self._write_handle is None and self._write is None:
            self._write_handle = self._loop.call_later(_EVENT_DELAY_S, self._start_write)

    def _start_write(self) -> None:
        """Write the buffered events, unless a write is in progress."""
        if self._write_handle is not None:
            self._write_handle.cancel()
            self._write_handle = None
        if self._events and self._write is None:
            events = list(self._events)
            self._events.clear()
            self._write = self._loop.create_task(self._write_events(events))

    async def _write_events(self, events: list[Event]) -> None:
        write = self._thread.submit(self.store.write_events, events)
        try:
            await asyncio.wrap_future(write)
        except asyncio.CancelledError:
            if write.cancelled():  # it had not begun
                self.events_lost += len(events)
            raise
        finally:
            self._write = None
            if self._events:
                self._write_soon()


def _set_times(found: Iterable[tuple[Wanted, int]]) -> Iterator[None]:
    for item, time_ms in found:
        item.progress.set_time(item.number, item.offset, time_ms)
        yield
