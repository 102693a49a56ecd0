"""Reads from some connections before every turn of the others, so that their short requests do not wait for long ones.

A poll of the loop may find many producers that have sent records. A client that waits for the end of its transaction
would be served after all of them, or even after the next poll if its request arrives meanwhile. So connections that
carry only requests about transactions have their own epoll, nested in the loop's, which is polled before every other
turn.

Without epoll, these connections are read like all others.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Any, Final, Protocol

from headrace.wire.apis import ApiKey

APIS: Final = frozenset(
    {
        ApiKey.ADD_PARTITIONS_TO_TXN.value,
        ApiKey.ADD_OFFSETS_TO_TXN.value,
        ApiKey.END_TXN.value,
        ApiKey.TXN_OFFSET_COMMIT.value,
    }
)
"""A connection that sends one of these is urgent until it sends one of `OTHER_APIS`. librdkafka has a separate
connection to the coordinator; the Java producer uses one connection for all requests to a broker."""
OTHER_APIS: Final = frozenset({ApiKey.PRODUCE.value, ApiKey.FETCH.value})
_AT_ONCE: Final = 16
"""Maximum number of urgent connections to serve before a turn of another connection."""


class Watched(Protocol):
    """The receiving half of a connection."""

    def watch_with(self, watcher: Any) -> None: ...


class UrgentReads:
    """Calls back when a watched socket is readable. `serve` checks them between the polls of the loop."""

    __slots__ = ("_epoll", "_loop", "_readers", "is_used")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._readers: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self.serve)
        self.is_used = False
        """True if sockets are watched. A plain attribute, because every turn reads it."""

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Watch a socket, like `loop.add_reader`."""
        if self._epoll is None:
            self._loop.add_reader(fd, callback)
            return
        self._epoll.register(fd, select.EPOLLIN)
        self._readers[fd] = callback
        self.is_used = True

    def remove_reader(self, fd: int) -> None:
        """Stop watching a socket, like `loop.remove_reader`; call this before closing the socket."""
        if self._epoll is None:
            self._loop.remove_reader(fd)
        elif self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)
            self.is_used = bool(self._readers)

    def serve(self) -> None:
        """Read from sockets that are readable now."""
        if self._epoll is None:
            return
        for fd, _ in self._epoll.poll(0, _AT_ONCE):
            callback = self._readers.get(fd)
            if callback is not None:
                callback()

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None
            self.is_used = False


class Urgency:
    """Decides from a connection's requests whether it is urgent."""

    __slots__ = ("_loop", "_reads", "_receiver", "is_urgent", "may_change")

    def __init__(self, reads: UrgentReads, loop: asyncio.AbstractEventLoop, receiver: Watched) -> None:
        self._reads = reads
        self._loop = loop
        self._receiver = receiver
        self.is_urgent = False
        self.may_change = True
        """True if `note` must be called with further requests."""

    def note(self, api_key: int) -> None:
        """Record the API of a request, and watch the connection accordingly."""
        if api_key in OTHER_APIS:
            self.may_change = False
        elif api_key not in APIS:
            return
        if self.is_urgent is not self.may_change:
            self.is_urgent = self.may_change
            self._receiver.watch_with(self._reads if self.is_urgent else self._loop)

    def let_others_go_first(self) -> None:
        """Serve connections that are urgent, if this one is not."""
        if self._reads.is_used and not self.is_urgent:
            self._reads.serve()
