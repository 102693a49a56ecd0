"""Requests to the cluster's controller: allocation of producer ids, and controlled shutdown."""

import asyncio
import logging
from collections.abc import Callable

from kio.schema.allocate_producer_ids.v0.request import AllocateProducerIdsRequest
from kio.schema.allocate_producer_ids.v0.response import AllocateProducerIdsResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i32, i64

from headrace.client.link import Link, LinkError
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.wire.controls.controlled_shutdown import ControlledShutdownRequest, ControlledShutdownResponse
from headrace.wording import count

log = logging.getLogger(__name__)


class Controller:
    """Sends requests to the controller. `address` returns its current address, `broker_epoch` this broker's epoch."""

    def __init__(
        self,
        config: BrokerConfig,
        address: Callable[[], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._config = config
        self._address = address
        self._broker_epoch = broker_epoch
        self._loop = loop
        self._link = self._new_link(api_versions=True)

    def _new_link(self, *, api_versions: bool) -> Link:
        config = self._config
        timeout_s = config.controller_socket_timeout_ms / 1000
        return Link(
            self._address,
            client_id=str(config.node_id),
            loop=self._loop,
            api_versions=api_versions,
            timeout_s=timeout_s,
        )

    def close(self) -> None:
        self._link.close()

    async def allocate_producer_ids(self) -> tuple[int, int]:
        """Return the first id of a new block, and its size (KIP-730).

        Raises KafkaError(coordinator_load_in_progress), which producers retry, if the controller does not allocate one.
        """
        request = AllocateProducerIdsRequest(
            broker_id=BrokerId(self._config.node_id), broker_epoch=i64(self._broker_epoch())
        )
        try:
            reply = await self._link.call(request, 0, AllocateProducerIdsResponse)
        except LinkError as error:
            raise _no_block(str(error)) from error
        if reply.error_code is not ErrorCode.none:
            raise _no_block(reply.error_code.name)
        return reply.producer_id_start, reply.producer_id_len

    async def shut_down(self) -> None:
        """Ask the controller to move leadership to other brokers, at most `controlled.shutdown.max.retries` times."""
        config = self._config
        link = self._new_link(api_versions=False)
        try:
            for attempt in range(1, config.controlled_shutdown_max_retries + 1):
                if await self._leaders_have_moved(link):
                    log.info("Controlled shutdown is complete: this broker leads no partition that has other replicas")
                    return
                if attempt < config.controlled_shutdown_max_retries:
                    await asyncio.sleep(config.controlled_shutdown_retry_backoff_ms / 1000)
            log.warning(
                "Controlled shutdown failed: stopping anyway; partitions that this broker leads are unavailable until"
                " the controller elects other leaders"
            )
        finally:
            link.close()

    async def _leaders_have_moved(self, link: Link) -> bool:
        request = ControlledShutdownRequest(broker_id=i32(self._config.node_id), broker_epoch=i64(self._broker_epoch()))
        try:
            reply = await link.call(request, 3, ControlledShutdownResponse)
        except LinkError as error:
            log.warning("The controller did not answer ControlledShutdown: %s", error)
            return False
        if reply.error_code is not ErrorCode.none:
            log.warning("The controller rejected ControlledShutdown: %s", reply.error_code.name)
            return False
        if reply.remaining_partitions:
            left = count(len(reply.remaining_partitions), "partition")
            log.info("Controlled shutdown: this broker still leads %s", left)
            return False
        return True


def _no_block(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.coordinator_load_in_progress, f"The controller did not allocate producer ids: {reason}")
