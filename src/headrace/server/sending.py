"""The sending half of a connection: answers wait here until the client takes them.

File regions go out with `sendfile`, so the bytes of a fetch never enter this process; those that are not in memory any
more are brought in by a thread first.
"""

import asyncio
import errno
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from typing import Final

from headrace.server import cold_reads
from headrace.server.frames import Part, Parts
from headrace.storage.files.log_file import FileSlice

MAX_BUFFERS_PER_SEND: Final = 64
MAX_ALL_UNSENT: Final = 128 * 1024 * 1024
"""Bytes of answers in memory, over all connections, that clients have not taken."""
_MORE: Final = getattr(socket, "MSG_MORE", 0)


class UnsentAnswers:
    """Bytes of answers that wait for their clients. Where they are too many, the connection with the most ends."""

    __slots__ = ("_limit", "_sizes", "total")

    def __init__(self, limit: int = MAX_ALL_UNSENT) -> None:
        self._limit = limit
        self._sizes: dict[Sender, int] = {}
        self.total = 0

    def keep(self, sender: "Sender", size: int) -> None:
        """Note that answers of `size` bytes wait for the client of `sender`."""
        self.total += size - self._sizes.get(sender, 0)
        self._sizes[sender] = size
        while self.total > self._limit:
            worst = max(self._sizes, key=self._sizes.__getitem__)
            worst.close(
                f"it does not take its answers: {self._sizes[worst]} bytes of {self.total >> 20} MiB that wait for all"
                f" clients; {self._limit >> 20} MiB are allowed"
            )
            self.forget(worst)

    def forget(self, sender: "Sender") -> None:
        """Nothing waits for the client of `sender` any more."""
        self.total -= self._sizes.pop(sender, 0)


class Sender(ABC):
    """Sends on a non-blocking socket, with the loop's writer callbacks where the client is slow to take it."""

    __slots__ = (
        "_all_unsent",
        "_fd",
        "_is_kept",
        "_is_writing",
        "_loop",
        "_out",
        "_socket",
        "_unsent",
        "_waits_for_disk",
        "is_closed",
        "last_active_at",
    )

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop, unsent: UnsentAnswers) -> None:
        self.is_closed = False
        self._all_unsent = unsent
        self.last_active_at = loop.time()
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._out: deque[Part] = deque()
        self._unsent = 0
        self._is_writing = False
        self._is_kept = False
        self._waits_for_disk = False

    @abstractmethod
    def close(self, reason: str | None) -> None:
        """End the connection."""

    @abstractmethod
    def _go_on(self) -> None:
        """Called when answers were sent that had to wait."""

    def _queue(self, parts: Parts) -> None:
        self._out.extend(parts)
        for part in parts:
            if type(part) is not FileSlice:
                self._unsent += len(part)

    def _flush(self, *, is_warm: bool = False) -> None:
        """Send what can be sent; `is_warm` when the file region in front has just been read from the disk."""
        out = self._out
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
            self.close(f"its records cannot be read: {error.strerror}" if error.errno == errno.EIO else None)
            return
        self._stop_writing()
        if self._is_kept:
            self._is_kept = False
            self._all_unsent.forget(self)

    def _keep_for_client(self) -> None:
        self._is_kept = True
        self._all_unsent.keep(self, self._unsent)

    def _stop_writing(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)

    def _send_buffers(self) -> None:
        out = self._out
        buffers: list[bytes | bytearray | memoryview] = []
        flags = 0
        for part in out:
            if type(part) is FileSlice:
                flags = _MORE  # the header leaves in one packet with the records that follow
                break
            if len(buffers) == MAX_BUFFERS_PER_SEND:
                break
            buffers.append(part)  # type: ignore[arg-type]
        if len(buffers) == 1 and not flags:
            sent = self._socket.send(buffers[0])
        else:
            sent = self._socket.sendmsg(buffers, (), flags)
        self._unsent -= sent
        for part in buffers:
            if sent < len(part):
                out[0] = memoryview(part)[sent:]
                return
            sent -= len(part)
            out.popleft()

    def _wait_for_disk(self, chunk: FileSlice) -> None:
        self._waits_for_disk = True
        self._stop_writing()
        self._keep_for_client()
        read = self._loop.run_in_executor(None, cold_reads.bring_in, chunk)
        read.add_done_callback(self._on_read)

    def _on_read(self, _: "asyncio.Future[None]") -> None:
        self._waits_for_disk = False
        if not self.is_closed:
            self.last_active_at = self._loop.time()
            self._flush(is_warm=True)
            self._go_on()

    def _send_file(self, part: FileSlice, size: int) -> None:
        sent = os.sendfile(self._fd, part.file.fileno(), part.position, size)
        if sent == 0:
            # The file is shorter than when the answer was made: the client cannot be given what was promised.
            raise ConnectionAbortedError("a segment was truncated while it was being sent")
        if sent == part.size:
            self._out.popleft()
        else:
            self._out[0] = FileSlice(part.file, part.position + sent, part.size - sent)

    @abstractmethod
    def _on_writable(self) -> None:
        """Called when the socket takes more."""
