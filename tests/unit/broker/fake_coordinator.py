"""A transaction coordinator that verifies partitions as tests tell it to."""

import asyncio
from collections.abc import Sequence
from typing import Any

from headrace.errors import ErrorCode
from headrace.replication.verification import Verified
from headrace.types import TopicPartition


class Coordinator:
    """A coordinator that records its calls and returns `results` one after another."""

    def __init__(self) -> None:
        self.results: list[ErrorCode] = []
        self.calls: list[tuple[str, int, int, list[str], bool]] = []
        self.is_slow = False
        self.called = asyncio.Event()

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        adds: bool,
        client: str,
    ) -> Any:
        self.calls.append(
            (transactional_id, producer_id, producer_epoch, [str(partition) for partition in partitions], adds)
        )
        self.called.set()
        response: Verified = dict.fromkeys(partitions, self.results.pop(0) if self.results else ErrorCode.none)
        return self._later(response) if self.is_slow else response

    async def _later(self, response: Verified) -> Verified:
        await asyncio.sleep(0)
        return response
