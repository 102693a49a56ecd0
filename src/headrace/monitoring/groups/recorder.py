"""Keeps the history of groups: takes samples at an interval, buffers what happens, and writes both in a thread.

On the event loop only short slices of looking; files are read and written in a thread of their own, so that neither a
commit nor a fsync of a log ever waits for the history.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from headrace.clock import now_ms
from headrace.coordinator.group_coordinator import GroupCoordinator
from headrace.coordinator.groups.effects import Happening, Note
from headrace.coordinator.groups.group import Group
from headrace.coordinator.groups.subscriptions import Topics
from headrace.errors import KafkaError
from headrace.monitoring.groups.events import Event, event_of
from headrace.monitoring.groups.sampler import GroupSampler, Reset, Wanted, learn, look_up, scan
from headrace.monitoring.groups.store import HistoryStore
from headrace.replication.partition import Partition

log = logging.getLogger(__name__)

T = TypeVar("T")

_SLICE_S: Final = 0.002
"""How long a sweep may keep the event loop from its connections at a time."""
_PAUSE_S: Final = 0.002
_EVENT_DELAY_S: Final = 1.0
"""How long events are gathered before they are written: what a crash can take."""
_MAX_EVENTS: Final = 20_000
"""Events that may wait for the disk; more are counted and let go."""
_FIRST_PAUSE_S: Final = 1.0
_PRUNE_INTERVAL_S: Final = 60.0
_TOUCH_INTERVAL_S: Final = 3600.0


class GroupHistory:
    """The history of every group of this broker. `observe` is told by the coordinator, all else happens by itself."""

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
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="headrace-history")
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._write_handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.rebalances: dict[str, int] = {}
        """How many rebalances each group has begun since the broker started."""
        self.events_lost = 0

    def start(
        self, coordinator: GroupCoordinator, topics: Topics, partition: Callable[[str, int], Partition | None]
    ) -> None:
        """Take samples from now on."""
        self.coordinator = coordinator
        self.sampler = GroupSampler(coordinator.groups_with_offsets, topics, partition, self._assumed_reset)
        self._task = self._loop.create_task(self._keep())

    async def stop(self) -> None:
        """Write what is still waiting, and close the file."""
        if self._write_handle is not None:
            self._write_handle.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._events:
            await self.in_thread(lambda: self.store.write_events(self._taken()))
        await self.in_thread(self.store.close)
        self._thread.shutdown()

    def observe(self, group_id: str, note: Note, at_ms: int) -> None:
        """Something happened to a group: a line of its timeline."""
        if note.what in (Happening.REBALANCING, Happening.BUMPED):
            self.rebalances[group_id] = self.rebalances.get(group_id, 0) + 1
        elif note.what is Happening.DELETED:
            self.rebalances.pop(group_id, None)
        if len(self._events) >= _MAX_EVENTS:
            self.events_lost += 1
            return
        self._events.append(event_of(group_id, note, at_ms))
        if self._write_handle is None:
            self._write_handle = self._loop.call_later(_EVENT_DELAY_S, self._write_events)

    async def flush(self) -> None:
        """Returns once everything that happened until now is in the file."""
        events = self._taken()
        await self.in_thread(lambda: events and self.store.write_events(events))

    async def look_at(self, group: Group) -> None:
        """Bring what is known of one group up to the present."""
        wanted: list[Wanted] = []
        offsets = self.coordinator.committed_offsets(group.group_id)
        await self._in_slices(self.sampler.sweep_one(group, offsets, now_ms(), wanted))
        await self._settle(wanted)

    async def sample(self) -> None:
        """Look at all groups and write down what has changed."""
        wanted: list[Wanted] = []
        changed: list[tuple[str, str, bytes]] = []
        at_ms = now_ms()
        await self._in_slices(self.sampler.sweep(at_ms, wanted))
        await self._settle(wanted)
        await self._in_slices(self.sampler.changed(at_ms, changed))
        if not await self.in_thread(lambda: self.store.write_sample(at_ms, changed)):
            self.sampler.written_is_lost()

    async def _in_slices(self, steps: Iterable[None]) -> None:
        deadline = time.monotonic() + _SLICE_S
        for _ in steps:
            if time.monotonic() >= deadline:
                await asyncio.sleep(_PAUSE_S)
                deadline = time.monotonic() + _SLICE_S

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do what waits for the history's disk; one after the other."""
        return await self._loop.run_in_executor(self._thread, work)

    async def _settle(self, wanted: list[Wanted]) -> None:
        if wanted:
            found = await self.in_thread(lambda: look_up(wanted))
            await self._in_slices(_dated(found))
        if scans := self.sampler.take_scans():
            learn(await self.in_thread(lambda: scan(scans)))

    async def _keep(self) -> None:
        await self._until_loaded()
        # What went away while the broker was down has ended too.
        self.sampler.watched_before(await self.in_thread(self.store.series))
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
                log.exception("A sample of the groups' offsets failed; the next one is taken in its time")
            await asyncio.sleep(self._interval_s)

    async def _until_loaded(self) -> None:
        """Returns once the coordinator knows all its groups, and those who waited for the broker have had a moment."""
        while True:
            await asyncio.sleep(min(self._interval_s, _FIRST_PAUSE_S))
            try:
                next(self.coordinator.groups(), None)
            except KafkaError:
                continue
            return

    async def _touch(self) -> None:
        """Say which groups are still there, and forget the others."""
        live = self.sampler.live()
        await self.in_thread(lambda: self.store.touch(live, now_ms()))
        there = {group.group_id for group, _ in self.coordinator.groups_with_offsets()}
        self.rebalances = {name: count for name, count in self.rebalances.items() if name in there}

    def _write_events(self) -> None:
        self._write_handle = None
        events = self._taken()
        self._thread.submit(self.store.write_events, events)

    def _taken(self) -> list[Event]:
        events = list(self._events)
        self._events.clear()
        return events


def _dated(found: Iterable[tuple[Wanted, int]]) -> Iterator[None]:
    for each, time_ms in found:
        each.progress.found(each.number, each.offset, time_ms)
        yield
