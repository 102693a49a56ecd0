"""Committed offsets that nobody uses any more: removed when their retention is over (KIP-211), announced before.

Every `offsets.retention.check.interval.ms` all shards are looked at, one at a time, so that a broker with many groups
answers its clients in between.
"""

import asyncio
import logging
from collections import deque
from typing import Final

from headrace.clock import Clock
from headrace.coordinator.groups.settings import GroupSettings
from headrace.coordinator.groups.state.shard import GroupShard
from headrace.coordinator.runtime.shards import LedShard, Shards
from headrace.errors import KafkaError
from headrace.wording import count

log = logging.getLogger(__name__)

_WARNING_MS: Final = 24 * 60 * 60 * 1000
_MINUTE_MS: Final = 60_000


class OffsetExpiry:
    """Looks again and again, from `start` to `stop`."""

    def __init__(
        self, settings: GroupSettings, loop: asyncio.AbstractEventLoop, shards: Shards[GroupShard], clock: Clock
    ) -> None:
        self._settings = settings
        self._loop = loop
        self._shards = shards
        self._clock = clock
        self._handle: asyncio.TimerHandle | None = None
        self._expiring: dict[int, dict[str, int]] = {}
        """Partition of `__consumer_offsets` to its groups that lose offsets soon, and when the first of them."""

    def start(self) -> None:
        if self._handle is None:
            self._schedule()

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def forget(self, partition: int) -> None:
        """Another broker leads `partition` of `__consumer_offsets`."""
        self._expiring.pop(partition, None)

    def expiring(self) -> dict[str, int]:
        """Groups that lose offsets within a day, or half of `offsets.retention.minutes` if that is shorter, unless a
        member joins or commits: when the first is lost, in ms since the epoch, as of the latest look.
        """
        return {group_id: at for groups in self._expiring.values() for group_id, at in groups.items()}

    def look_at(self, shards: deque[LedShard[GroupShard]]) -> None:
        """Warn of what expires soon, remove what has expired, then go on with the next shard."""
        if not shards:
            self._schedule()
            return
        shard = shards.popleft()
        self._handle = self._loop.call_later(0, self.look_at, shards)
        if not self._shards.leads(shard):
            return
        self._warn(shard)
        decision = shard.state.decide_expiry(self._clock.wall_ms())
        if decision:
            log.info("%s: %s of offsets and groups expired", shard.name, count(len(decision), "record"))
        try:
            self._shards.append_and_replay(shard, decision)
        except KafkaError as error:
            log.error("Expired offsets of %s stay for now: %s", shard.name, error)

    def _schedule(self) -> None:
        seconds = self._settings.offsets_retention_check_interval_ms / 1000
        self._handle = self._loop.call_later(seconds, lambda: self.look_at(deque(self._shards.loaded())))

    def _warn(self, shard: LedShard[GroupShard]) -> None:
        now_ms = self._clock.wall_ms()
        retention_minutes = self._settings.offsets_retention_minutes
        found = shard.state.expiring(now_ms + min(_WARNING_MS, retention_minutes * _MINUTE_MS // 2))
        for group_id in sorted(found.keys() - self._expiring.get(shard.partition, {}).keys()):
            log.warning(
                "Group %s loses committed offsets in %s, which nobody has used for as long as"
                " offsets.retention.minutes=%d allows. A member that joins or a commit keeps them.",
                group_id,
                count(max(found[group_id] - now_ms, 0) // _MINUTE_MS, "minute"),
                retention_minutes,
            )
        self._expiring[shard.partition] = found
