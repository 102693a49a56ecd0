"""Send ISR changes to the controller, with AlterPartition 3 (KIP-497, KIP-903)."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final, Protocol

from headrace.client.link import LinkError
from headrace.errors import ErrorCode
from headrace.replication.leading.isr_changes import Answer, IsrChange, IsrChanges
from headrace.replication.leading.leader_state import Committed

_VERSION: Final = 3
_RETRY_S: Final = 0.05
"""Pause after a request without an answer or with a top-level error, as in Kafka."""
_LOG_INTERVAL_S: Final = 10.0
"""Minimum interval between log lines while requests fail."""

log = logging.getLogger(__name__)


class _RejectedError(Exception):
    """The controller answered with a top-level error."""


class Controller(Protocol):
    """A link to the controller."""

    async def call(self, message: Any, version: int, reply_type: type[Any]) -> Any:
        """Return the reply. Raises LinkError."""


class IsrReports:
    """Sends the ISR changes of the partitions that this broker leads. Use it on the event loop only."""

    def __init__(
        self,
        controller: Controller,
        *,
        loop: asyncio.AbstractEventLoop,
        broker_id: int,
        broker_epoch: Callable[[], int],
    ) -> None:
        self._controller = controller
        self._loop = loop
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._changes = IsrChanges()
        self._done: dict[IsrChange, Callable[[Answer], None]] = {}
        self._sending: asyncio.Task[None] | None = None
        self._log_again_at = 0.0
        self.shrinks = self.expands = self.failures = 0
        """Changes applied by the controller; `failures`: rejected, or submitted while another was pending."""

    def submit(self, change: IsrChange, done: Callable[[Answer], None]) -> None:
        if not self._changes.submit(change):
            self.failures += 1
            self._loop.call_soon(done, ErrorCode.operation_not_attempted)
            return
        self._done[change] = done
        if self._sending is None:
            self._sending = self._loop.create_task(self._send())

    async def _send(self) -> None:
        try:
            await self._send_all()
        except Exception:
            log.exception("Sending ISR changes failed: this is a bug, please report it")
        finally:
            # Not in a callback: a change that is submitted before callbacks run needs a new task.
            self._sending = None

    async def _send_all(self) -> None:
        while changes := self._changes.next_request():
            try:
                answers = await self._ask(changes)
            except Exception as error:  # noqa: BLE001  it is logged
                # Even after a defect: without another attempt the in-sync replicas would never change again.
                self._log_failure(error)
                self._changes.failed()
                await asyncio.sleep(_RETRY_S)
                continue
            self._log_again_at = 0.0
            answered = self._changes.answered(answers)
            for change, answer in answered:
                self._count(change, answer)
                self._done.pop(change)(answer)
            if len(answered) < len(changes) or any(answer is ErrorCode.unknown_server_error for _, answer in answered):
                await asyncio.sleep(_RETRY_S)

    def _log_failure(self, error: Exception) -> None:
        now = self._loop.time()
        if now < self._log_again_at:
            return
        self._log_again_at = now + _LOG_INTERVAL_S
        is_known = isinstance(error, LinkError | _RejectedError)
        log.warning(
            "The controller has not accepted ISR changes, so acks=all may wait for a lagging replica; trying again: %s",
            error if is_known else repr(error),
            exc_info=None if is_known else error,
        )

    def _count(self, change: IsrChange, answer: Answer) -> None:
        if isinstance(answer, ErrorCode):
            self.failures += 1
        elif change.proposal.is_expansion:
            self.expands += 1
        else:
            self.shrinks += 1

    async def _ask(self, changes: Sequence[IsrChange]) -> dict[tuple[Any, int], Answer]:
        """Return the answers. Raises LinkError, and _RejectedError."""
        # Imported late: a single broker does not need it.
        from kio.schema.alter_partition.v3.request import (
            AlterPartitionRequest,
            BrokerState,
            PartitionData,
            TopicData,
        )
        from kio.schema.alter_partition.v3.response import AlterPartitionResponse

        own_epoch = self._broker_epoch()
        by_topic = groupby(sorted(changes, key=lambda change: change.topic_id), key=lambda change: change.topic_id)
        fields: Any = {
            "broker_id": self._broker_id,
            "broker_epoch": own_epoch,
            "topics": tuple(
                TopicData(
                    topic_id=topic_id,
                    partitions=tuple(
                        PartitionData(
                            partition_index=change.topic_partition.partition,  # type: ignore[arg-type]
                            leader_epoch=change.proposal.leader_epoch,  # type: ignore[arg-type]
                            partition_epoch=change.proposal.partition_epoch,  # type: ignore[arg-type]
                            new_isr_with_epochs=tuple(
                                BrokerState(
                                    broker_id=broker,  # type: ignore[arg-type]
                                    broker_epoch=own_epoch if broker == self._broker_id else epoch,  # type: ignore[arg-type]
                                )
                                for broker, epoch in change.proposal.isr
                            ),
                        )
                        for change in of_topic
                    ),
                )
                for topic_id, of_topic in by_topic
            ),
        }
        reply = await self._controller.call(AlterPartitionRequest(**fields), _VERSION, AlterPartitionResponse)
        if reply.error_code is not ErrorCode.none:
            raise _RejectedError(f"it answered {reply.error_code.name}")
        return {
            (topic.topic_id, partition.partition_index): Committed(
                partition.leader_epoch, partition.partition_epoch, tuple(partition.isr)
            )
            if partition.error_code is ErrorCode.none
            else partition.error_code
            for topic in reply.topics
            for partition in topic.partitions
        }

    async def close(self) -> None:
        sending = self._sending
        if sending is not None:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
