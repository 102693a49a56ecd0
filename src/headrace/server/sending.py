"""The sending half of a connection, which keeps replies until the client reads them.

File regions are sent with `sendfile`, so fetched bytes never enter this process; a thread first loads those that are
not in the page cache.
"""

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import Final

from headrace.server import cold_reads
from headrace.server.frames import Part, Parts
from headrace.storage.files.log_file import FileSlice

MAX_BUFFERS_PER_SEND: Final = 64
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Replies are collected up to this many bytes in memory, without file regions, and then sent."""
MAX_ALL_UNSENT: Final = 128 * 1024 * 1024
"""Maximum bytes of unsent replies in memory over all connections."""
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class UnsentAnswers:
    """Counts unsent bytes of all connections. Over the limit, the connection with the most is closed."""

    __slots__ = ("_limit", "_sizes", "total")

    def __init__(self, limit: int = MAX_ALL_UNSENT) -> None:
        self._limit = limit
        self._sizes: dict[Sender, int] = {}
        self.total = 0

    def keep(self, sender: "Sender", size: int) -> None:
        """Record that `sender` has `size` unsent bytes."""
        self.total += size - self._sizes.get(sender, 0)
        self._sizes[sender] = size
        while self.total > self._limit:
            worst = max(self._sizes, key=self._sizes.__getitem__)
            worst.give_up(
                f"the client does not read its replies: {self._sizes[worst]} bytes are unsent, and"
                f" {self.total >> 20} MiB over all connections (limit {self._limit >> 20} MiB)"
            )
            self.forget(worst)

    def forget(self, sender: "Sender") -> None:
        """Record that `sender` has no unsent bytes."""
        self.total -= self._sizes.pop(sender, 0)


class Sender:
    """Sends on a non-blocking socket, with the loop's writer callbacks if the client reads slowly.

    `on_writable` is called when the socket has space, `on_sent` when replies that waited for the disk are sent, and
    `on_broken` when sending fails, with a reason, or None if the client has disconnected.
    """

    __slots__ = (
        "_all_unsent",
        "_fd",
        "_is_kept",
        "_is_writing",
        "_loop",
        "_on_broken",
        "_on_sent",
        "_on_writable",
        "_socket",
        "_waits_for_disk",
        "out",
        "unsent",
    )

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        all_unsent: UnsentAnswers,
        *,
        on_writable: Callable[[], None],
        on_sent: Callable[[], None],
        on_broken: Callable[[str | None], None],
    ) -> None:
        self.out: deque[Part] = deque()
        """Parts that have not been sent yet."""
        self.unsent = 0
        """Bytes of these parts in memory, without file regions."""
        self._all_unsent = all_unsent
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._on_writable = on_writable
        self._on_sent = on_sent
        self._on_broken = on_broken
        self._is_writing = False
        self._is_kept = False
        self._waits_for_disk = False

    @property
    def is_full(self) -> bool:
        """True if the queued replies should be sent before more are collected."""
        return len(self.out) >= MAX_BUFFERS_PER_SEND or self.unsent > MAX_UNSENT_BYTES

    def queue(self, parts: Parts) -> None:
        self.out.extend(parts)
        for part in parts:
            if type(part) is not FileSlice:
                self.unsent += len(part)

    def flush(self, *, is_warm: bool = False) -> None:
        """Send as much as possible. `is_warm` is True if the first file region was just read from the disk."""
        out = self.out
        if self._waits_for_disk:
            return
        try:
            while out:
                if type(out[0]) is FileSlice:
                    part = out[0]
                    chunk = part if part.size <= cold_reads.CHUNK else part._replace(size=cold_reads.CHUNK)
                    if not is_warm and cold_reads.is_cold(chunk):
                        self._wait_for_disk(chunk)
                        return
                    self._send_file(part, chunk.size)
                    is_warm = False
                else:
                    self._send_buffers()
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._fd, self._on_writable)
            self._keep_for_client()
            return
        except OSError as error:
            self._on_broken(f"cannot read the records to send: {error.strerror}" if error.errno == errno.EIO else None)
            return
        self.stop_writing()
        if self._is_kept:
            self._is_kept = False
            self._all_unsent.forget(self)

    def _keep_for_client(self) -> None:
        self._is_kept = True
        self._all_unsent.keep(self, self.unsent)

    def give_up(self, reason: str) -> None:
        """Close the connection of a client that does not read its replies."""
        self._on_broken(reason)

    def stop_writing(self) -> None:
        """Stop waiting for space in the socket."""
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)

    def _send_buffers(self) -> None:
        out = self.out
        buffers: list[bytes | bytearray | memoryview] = []
        flags = 0
        for part in out:
            if type(part) is FileSlice:
                flags = _MORE  # send the header in one packet with the records that follow
                break
            if len(buffers) == MAX_BUFFERS_PER_SEND:
                break
            buffers.append(part)  # type: ignore[arg-type]
        if len(buffers) == 1 and not flags:
            sent = self._socket.send(buffers[0])
        else:
            sent = self._socket.sendmsg(buffers, (), flags)
        self.unsent -= sent
        for part in buffers:
            if sent < len(part):
                out[0] = memoryview(part)[sent:]
                return
            sent -= len(part)
            out.popleft()

    def drop(self) -> None:
        self.stop_writing()
        self.out.clear()
        self._all_unsent.forget(self)

    def _wait_for_disk(self, chunk: FileSlice) -> None:
        self._waits_for_disk = True
        self.stop_writing()
        self._keep_for_client()
        read = self._loop.run_in_executor(None, cold_reads.load_part, chunk)
        read.add_done_callback(self._on_read)

    def _on_read(self, _: "asyncio.Future[None]") -> None:
        self._waits_for_disk = False
        if self.out:
            self.flush(is_warm=True)
            self._on_sent()

    def _send_file(self, part: FileSlice, size: int) -> None:
        sent = os.sendfile(self._fd, part.file.fileno(), part.position, size)
        if sent == 0:
            # the file has become shorter, but the reply's size has already been sent
            raise ConnectionAbortedError("a segment was truncated while it was being sent")
        if sent == part.size:
            self.out.popleft()
        else:
            self.out[0] = FileSlice(part.file, part.position + sent, part.size - sent)
