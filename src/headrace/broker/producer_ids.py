"""Producer ids for idempotent producers, handed out from blocks that the controller allocates (KIP-730)."""

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    """Hands out ids nobody has had; `allocate_block` gives the first id of a new block and its length."""

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._ids = iter(range(0))
        self._lock = asyncio.Lock()

    async def next(self) -> int:
        """An id. Raises KafkaError where no block can be allocated."""
        async with self._lock:
            for producer_id in self._ids:
                return producer_id
            first, length = await self._allocate_block()
            self._ids = iter(range(first, first + length))
            return next(self._ids)
