"""Detects that a client has hung up while its request waits and nothing is read from it.

The kernel reports the end of the client's data independently of unread bytes (EPOLLRDHUP). Event loops do not offer
this, so a second epoll is nested in the loop's. Without epoll, only `connections.max.idle.ms` ends such connections.
"""

import asyncio
import select
from collections.abc import Callable


class HangUps:
    """Calls back once per watched socket when its client will send no more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left: dict[int, Callable[[], None]] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._look)

    def watch(self, fd: int, left: Callable[[], None]) -> None:
        """Call `left` when the client at the other end of `fd` has hung up, until `forget`."""
        if self._epoll is not None:
            self._left[fd] = left
            self._epoll.register(fd, select.EPOLLRDHUP | select.EPOLLET)

    def forget(self, fd: int) -> None:
        """Stop watching a socket; call this before closing it."""
        if self._epoll is not None and self._left.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _look(self) -> None:
        if self._epoll is None:
            return
        for fd, _ in self._epoll.poll(0):
            left = self._left.get(fd)
            if left is not None:
                left()
