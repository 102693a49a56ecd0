"""The controller's channels to the brokers: each sends one order at a time, and repeats it until the broker replies."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from headrace.client.link import Link, LinkError
from headrace.cluster.controller.batches import REQUESTS, Send
from headrace.cluster.image import BrokerImage

_RETRY_S: Final = 0.1
"""Pause (s) before a request is repeated, as in Kafka's controller."""

log = logging.getLogger(__name__)


class Channels:
    """The channels of one term in office."""

    def __init__(
        self,
        *,
        client_id: str,
        listener: str,
        timeout_s: float,
        request: Callable[[Send], Any],
        reply_type: Callable[[Any], type[Any]],
        answered: Callable[[Send, Any], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`answered` is called with each order and its reply.

        `request` encodes an order; `reply_type` returns the class of the reply to an encoded one.
        """
        self._client_id = client_id
        self._listener = listener
        self._timeout_s = timeout_s
        self._request = request
        self._reply_type = reply_type
        self._answered = answered
        self._loop = loop
        self._channels: dict[int, _Channel] = {}
        self._addresses: dict[int, tuple[str, int] | None] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> dict[int, int]:
        """Number of orders without a reply, by broker."""
        return {broker: channel.size for broker, channel in self._channels.items()}

    def connect(self, broker: BrokerImage) -> None:
        """Open a channel to a newly registered broker and drop earlier orders, or use a broker's new address."""
        endpoint = broker.endpoint(self._listener)
        if endpoint is None:
            log.error(
                "Broker %d has no listener %s, so the controller cannot send it commands: set "
                "inter.broker.listener.name, and listeners, as on the other brokers",
                broker.id,
                self._listener,
            )
        known = self._channels.get(broker.id)
        self._addresses[broker.id] = None if endpoint is None else (endpoint.host, endpoint.port)
        if known is not None and known.epoch == broker.epoch:
            return
        self.disconnect(broker.id)
        link = Link(
            lambda: self._addresses[broker.id],
            client_id=self._client_id,
            loop=self._loop,
            api_versions=False,
            timeout_s=self._timeout_s,
        )
        self._channels[broker.id] = _Channel(broker.epoch, link, self._exchange, self._loop)

    def disconnect(self, broker_id: int) -> None:
        channel = self._channels.pop(broker_id, None)
        if channel is not None:
            channel.close()
            self._closing.add(channel.task)
            channel.task.add_done_callback(self._closing.discard)

    def send(self, send: Send) -> None:
        channel = self._channels.get(send.broker_id)
        if channel is not None:
            channel.put(send)

    async def close(self) -> None:
        """Close all channels. Orders in flight may still be executed."""
        for broker_id in tuple(self._channels):
            self.disconnect(broker_id)
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _exchange(self, link: Link, send: Send) -> None:
        """Send an order, and repeat it until the broker replies."""
        message = self._request(send)
        reply_type = self._reply_type(message)
        failed = False
        while True:
            try:
                reply = await link.call(message, message.__version__, reply_type)
            except LinkError as error:
                log.log(
                    logging.DEBUG if failed else logging.WARNING,
                    "Broker %d did not reply to %s; trying again: %s",
                    send.broker_id,
                    REQUESTS[type(send.order)],
                    error,
                )
                failed = True
                await asyncio.sleep(_RETRY_S)
            else:
                self._answered(send, reply)
                return


class _Channel:
    """The orders to one registration of a broker."""

    def __init__(
        self, epoch: int, link: Link, exchange: Callable[[Link, Send], Any], loop: asyncio.AbstractEventLoop
    ) -> None:
        self.epoch = epoch
        self._link = link
        self._exchange = exchange
        self._orders: deque[Send] = deque()
        self._news = asyncio.Event()
        self.task = loop.create_task(self._run())

    @property
    def size(self) -> int:
        return len(self._orders)

    def put(self, send: Send) -> None:
        self._orders.append(send)
        self._news.set()

    def close(self) -> None:
        self.task.cancel()
        self._link.close()

    async def _run(self) -> None:
        while True:
            while self._orders:
                send = self._orders[0]
                try:
                    await self._exchange(self._link, send)
                except Exception:
                    log.exception("A request to broker %d was lost: this is a bug, please report it", send.broker_id)
                self._orders.popleft()
            self._news.clear()
            await self._news.wait()
