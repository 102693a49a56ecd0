"""`Link.ask` for test doubles that implement `exchange`."""

import asyncio
from abc import ABC, abstractmethod

from headrace.client.link import Answered, LinkError


class AskingLink(ABC):
    """`asking` is the task that answers the last `ask`."""

    asking: asyncio.Task[None] | None = None

    @abstractmethod
    async def exchange(self, api_key: int, version: int, body: bytearray) -> memoryview: ...

    def ask(self, api_key: int, version: int, body: bytearray, answered: Answered) -> None:
        self.asking = asyncio.ensure_future(self._ask(api_key, version, body, answered))

    async def _ask(self, api_key: int, version: int, body: bytearray, answered: Answered) -> None:
        reply: memoryview | LinkError
        try:
            reply = await self.exchange(api_key, version, body)
        except LinkError as error:
            reply = error
        answered(reply)
