"""Producer ids, handed out from blocks that the controller allocates (KIP-730)."""

import asyncio
from collections.abc import Awaitable, Callable


class ProducerIds:
    """Hands out ids nobody has had; `allocate_block` gives the first id of a new block and its length."""

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[int, int]]]) -> None:
        self._allocate_block = allocate_block
        self._ids = range(0)
        self._lock = asyncio.Lock()

    def take(self) -> int | None:
        """An id; None where a block has to be allocated first."""
        if not self._ids:
            return None
        taken, self._ids = self._ids[0], self._ids[1:]
        return taken

    async def refill(self) -> None:
        """See to it that an id is at hand. Raises KafkaError where no block can be allocated."""
        async with self._lock:
            if not self._ids:
                first, length = await self._allocate_block()
                self._ids = range(first, first + length)

    async def next(self) -> int:
        """An id. Raises KafkaError where no block can be allocated."""
        while (taken := self.take()) is None:
            await self.refill()
        return taken
