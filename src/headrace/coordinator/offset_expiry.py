"""Remove unused offsets when their retention time is over (KIP-211), and warn before that.

Checks all shards every `offsets.retention.check.interval.ms`, in slices: other requests are served in between.
"""

import asyncio
import logging
from collections import deque
from itertools import chain
from typing import Final

from headrace.clock import Clock
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state.shard import GroupShard
from headrace.coordinator.runtime.shards import LedShard, Shards
from headrace.errors import KafkaError
from headrace.slices import Steps, run_slice
from headrace.wording import count

log = logging.getLogger(__name__)

_WARNING_MS: Final = 24 * 60 * 60 * 1000
_MINUTE_MS: Final = 60_000


class OffsetExpiry:
    """Removes expired offsets periodically, from `start` to `stop`."""

    def __init__(
        self, settings: GroupSettings, loop: asyncio.AbstractEventLoop, shards: Shards[GroupShard], clock: Clock
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._shards = shards
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._expiring: dict[int, dict[str, int]] = {}
        """By partition of `__consumer_offsets`: groups with offsets that expire soon, and the earliest expiry (ms)."""

    def start(self) -> None:
        if self._handle is None:
            self._schedule()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def forget(self, partition: int) -> None:
        """Forget the expiring offsets of a `__consumer_offsets` partition that this broker no longer leads."""
        self._expiring.pop(partition, None)

    def expiring(self) -> dict[str, int]:
        """Return the groups with offsets that expire within a day, or within half of `offsets.retention.minutes` if
        that is shorter, and their earliest expiry (ms since the epoch), as of the last check.
        """
        return {group_id: at for groups in self._expiring.values() for group_id, at in groups.items()}

    def check(self, checks: deque[Steps[None]]) -> None:
        """Run one slice of the first check, and the others in later iterations of the event loop."""
        if not checks:
            self._schedule()
            return
        self._handle = self._loop.call_later(0, self.check, checks)
        if run_slice(checks[0]) is not None:
            checks.popleft()

    def _schedule(self) -> None:
        seconds = self._settings.offsets_retention_check_interval_ms / 1000
        self._handle = self._loop.call_later(seconds, self._begin)

    def _begin(self) -> None:
        self.check(deque(map(self._check, self._shards.loaded())))

    def _check(self, shard: LedShard[GroupShard]) -> Steps[None]:
        """Warn of offsets that expire soon, then remove expired ones, while this broker leads the shard."""
        if self._shards.leads(shard):
            for _ in chain(self._warn(shard), self._remove(shard)):
                yield
                if not self._shards.leads(shard):
                    return

    def _warn(self, shard: LedShard[GroupShard]) -> Steps[None]:
        now_ms = self._clock.wall_ms()
        retention_minutes = self._settings.offsets_retention_minutes
        known = self._expiring.get(shard.partition, {})
        expiring: dict[str, int] = {}
        for some in shard.state.expiring(now_ms + min(_WARNING_MS, retention_minutes * _MINUTE_MS // 2)):
            expiring |= some
            for group_id in sorted(some.keys() - known.keys()):
                log.warning(
                    "Group %s will lose committed offsets in %s: unused offsets expire after"
                    " offsets.retention.minutes=%d. To keep them, start a member or commit again.",
                    group_id,
                    count(max(some[group_id] - now_ms, 0) // _MINUTE_MS, "minute"),
                    retention_minutes,
                )
                yield
            yield
        self._expiring[shard.partition] = expiring

    def _remove(self, shard: LedShard[GroupShard]) -> Steps[None]:
        written = 0
        for decision in shard.state.decide_expiry(self._clock.wall_ms()):
            try:
                # Before the next pause: a later commit or a new member may invalidate the decision.
                self._shards.append_and_replay(shard, decision)
            except KafkaError as error:
                text = "%s: cannot remove expired offsets, will retry at the next check: %s"
                log.error(text, shard.name, error)
                break
            written += len(decision)
            yield
        if written:
            log.info("%s: wrote %s for expired offsets and groups", shard.name, count(written, "tombstone"))
