"""Assign producer ids from blocks that the controller allocates (KIP-730)."""

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    """Assigns unused ids; `allocate_block` returns the first id of a new block and its length."""

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._ids = range(0)
        self._lock = asyncio.Lock()

    def take(self) -> int | None:
        """Return an id; None if a block has to be allocated first."""
        if not self._ids:
            return None
        producer_id, self._ids = self._ids[0], self._ids[1:]
        return producer_id

    async def refill(self) -> None:
        """Allocate a block if necessary. Raises KafkaError."""
        async with self._lock:
            if not self._ids:
                first, length = await self._allocate_block()
                self._ids = range(first, first + length)

    async def next(self) -> int:
        """Return an id. Raises KafkaError if no block can be allocated."""
        while (producer_id := self.take()) is None:
            await self.refill()
        return producer_id
