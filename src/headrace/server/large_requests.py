"""Handles large requests (thousands of entries) one after another, so that several take no more memory than one."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Final

from headrace.server.context import RequestContext
from headrace.server.frames import InvalidRequestError
from headrace.wire.apis import ApiKey

log = logging.getLogger(__name__)

MANY_ENTRIES: Final = 2000
"""Maximum number of array items in a request that is decoded and handled in one go, in a few milliseconds."""
MANY_BATCHES: Final = 128
"""Maximum number of topics and batches in Produce requests that are handled together: the first write to a partition
can take half a millisecond."""
LARGE_FRAME: Final = 64 * 1024
"""Maximum bytes of a request that is checked in one go, in a few milliseconds at worst (one entry per byte)."""
MAX_WAITING: Final = 64 * 1024 * 1024
"""Maximum bytes of all waiting large requests; each API in `_MAY_WAIT` has its own limit of this size. Connections of
further requests are closed, and their clients retry."""
MAX_WAITING_PARTITIONS: Final = 200_000
"""Maximum partitions of all waiting large fetches, which take about 60 MB. Others are answered without waiting."""
_MAY_WAIT: Final = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""APIs whose replies may wait for an event."""
_LARGE: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 2**31,  # mostly records
    ApiKey.FETCH: 16 * 1024,
    ApiKey.JOIN_GROUP: 4096,
    ApiKey.SYNC_GROUP: 4096,
}
"""Limits other than LARGE_FRAME; lower for APIs that may wait, because smaller waiting requests are not counted."""
_CHANGES: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.DELETE_RECORDS,
    }
)
"""APIs that write to the disk. Other large requests need not wait for them."""


def is_large_frame(api_key: int, size: int) -> bool:
    """Return True if `LargeRequests` must admit a request of `size` bytes."""
    return size > _LARGE.get(api_key, LARGE_FRAME)


class LargeRequests:
    """Large requests that are being handled or wait for their turn."""

    def __init__(self) -> None:
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[ApiKey | None] = Counter()

    @contextmanager
    def admitted(self, context: RequestContext, size: int) -> Iterator[None]:
        """Count `size` bytes as waiting. Raises InvalidRequestError if too many are waiting already."""
        kind = ApiKey(context.api_key) if context.api_key in _MAY_WAIT else None
        waiting = self._waiting[kind]
        if waiting and waiting + size > MAX_WAITING:
            raise InvalidRequestError(
                f"{ApiKey(context.api_key).name} of {size} bytes:"
                f" {waiting >> 20} MiB of large requests are already waiting; retry later"
            )
        self._waiting[kind] += size
        try:
            yield
        finally:
            self._waiting[kind] -= size

    def turn(self, context: RequestContext) -> AbstractAsyncContextManager[object]:
        """Return a lock to hold while the request is decoded and handled and its reply encoded."""
        if context.api_key in _MAY_WAIT:
            return nullcontext()
        return self._turns["changes" if context.api_key in _CHANGES else "reads"]


class WaitingPartitions:
    """Counts the partitions of large waiting fetches, which take memory until the wait ends."""

    def __init__(self, limit: int = MAX_WAITING_PARTITIONS) -> None:
        self._limit = limit
        self._refused = 0
        self.count = 0

    def reserve(self, partitions: int) -> bool:
        """Reserve room for a waiting fetch; call `release` after the wait. Return False if there is not enough."""
        if self.count + partitions <= self._limit:
            self.count += partitions
            return True
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            log.warning(
                "A fetch of %d partitions was answered without waiting, because large waiting fetches already cover %d"
                " (limit %d); its client will fetch again (%d such fetches so far)",
                partitions,
                self.count,
                self._limit,
                self._refused,
            )
        return False

    def release(self, partitions: int) -> None:
        """Release the room of a fetch after its wait. Call this once per successful `reserve`."""
        self.count -= partitions
