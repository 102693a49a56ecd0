"""Requests with thousands of entries: they wait for each other, so that together they take no more than one does."""

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
"""Items of a request's arrays that are decoded and handled at once: a few milliseconds."""
MANY_BATCHES: Final = 128
"""Topics and batches of Produce requests that are handled at once: the first write to a partition can take half a
millisecond."""
LARGE_FRAME: Final = 64 * 1024
"""Bytes of a request that are looked through at once: at worst, an entry a byte, it takes some milliseconds."""
MAX_WAITING: Final = 64 * 1024 * 1024
"""Bytes of large requests that may wait, and of each API that may wait for long. The connections of more are ended:
their clients try again."""
MAX_WAITING_PARTITIONS: Final = 200_000
"""Partitions of all fetches that wait and name many: some 60 MB. More fetches are answered without a wait."""
_MAY_WAIT: Final = frozenset({ApiKey.FETCH, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""APIs whose answer may wait for something to happen."""
_LARGE: Final[dict[int, int]] = {
    ApiKey.PRODUCE: 2**31,  # records, mostly
    ApiKey.FETCH: 16 * 1024,
    ApiKey.JOIN_GROUP: 4096,
    ApiKey.SYNC_GROUP: 4096,
}
"""Other bounds than LARGE_FRAME: smaller ones for requests that may wait, whose memory is not counted below."""
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
"""APIs that wait for the disk. Other large requests need not wait for them."""


def is_large_frame(api_key: int, size: int) -> bool:
    """Return True if so many bytes are too many to be looked through at once, or to wait without being counted."""
    return size > _LARGE.get(api_key, LARGE_FRAME)


class LargeRequests:
    """Those that are in hand or wait for their turn."""

    def __init__(self) -> None:
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[ApiKey | None] = Counter()

    @contextmanager
    def admitted(self, context: RequestContext, size: int) -> Iterator[None]:
        """Raises InvalidRequestError where too much waits already for `size` bytes more."""
        kind = ApiKey(context.api_key) if context.api_key in _MAY_WAIT else None
        waiting = self._waiting[kind]
        if waiting and waiting + size > MAX_WAITING:
            raise InvalidRequestError(
                f"{ApiKey(context.api_key).name} of {size} bytes: {waiting >> 20} MiB of large requests wait already"
            )
        self._waiting[kind] += size
        try:
            yield
        finally:
            self._waiting[kind] -= size

    def turn(self, context: RequestContext) -> AbstractAsyncContextManager[object]:
        """Held while the request is decoded, handled and its answer encoded."""
        if context.api_key in _MAY_WAIT:
            return nullcontext()
        return self._turns["changes" if context.api_key in _CHANGES else "reads"]


class WaitingPartitions:
    """Those of all fetches that wait and name many. They cost memory until the wait ends."""

    def __init__(self, limit: int = MAX_WAITING_PARTITIONS) -> None:
        self._limit = limit
        self._refused = 0
        self.count = 0

    def reserve(self, partitions: int) -> bool:
        """Decide whether a fetch of so many partitions may wait; `release` must follow if it may."""
        if self.count + partitions <= self._limit:
            self.count += partitions
            return True
        self._refused += 1
        if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th, 8th, …
            log.warning(
                "Fetches of %d partitions wait for records: one of %d more was answered without a wait (%d so far)",
                self.count,
                partitions,
                self._refused,
            )
        return False

    def release(self, partitions: int) -> None:
        """A fetch of so many partitions waits no more."""
        self.count -= partitions
