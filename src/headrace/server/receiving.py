"""The receiving half of a connection, which keeps incomplete requests."""

import asyncio
import mmap
import socket
from collections.abc import Callable
from typing import Final, Protocol

from headrace.server.frames import SIZE_BYTES
from headrace.server.request_memory import HOLD_SECONDS, RequestMemory

SCRATCH_SIZE: Final = 1024 * 1024
KEPT_BUFFER: Final = 4 * 1024 * 1024

# All connections read into the same scratch memory, and copy only incomplete frames: thousands of idle connections need
# no buffers, and the memory stays in the processor's cache.
_scratch = bytearray(SCRATCH_SIZE)
_scratch_view = memoryview(_scratch)

# The last buffer of an incomplete frame, used again for the next, because new memory would be zeroed first. As in the
# scratch memory, the bytes of a request are valid only until its handler returns or awaits.
_spare = [bytearray()]


class Watcher(Protocol):
    """Calls back when a socket is readable."""

    def add_reader(self, fd: int, callback: Callable[[], None], /) -> object: ...

    def remove_reader(self, fd: int, /) -> object: ...


class Receiver:
    """Reads from a non-blocking socket into `view[:end]`; `on_readable` is called when the client has sent more."""

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_fd",
        "_frame_started_at",
        "_is_reading",
        "_loop",
        "_memory",
        "_needed",
        "_on_readable",
        "_reserved",
        "_socket",
        "_watcher",
        "end",
        "view",
        "waits_for_memory",
    )

    def __init__(
        self,
        sock: socket.socket,
        loop: asyncio.AbstractEventLoop,
        memory: RequestMemory,
        on_readable: Callable[[], None],
    ) -> None:
        self.view: memoryview = _scratch_view[:0]
        self.end = 0
        self.waits_for_memory = False
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._watcher: Watcher = loop
        self._memory = memory
        self._on_readable = on_readable
        self._buffer: bytearray | mmap.mmap | None = None
        self._needed = SIZE_BYTES
        self._reserved = 0
        self._frame_started_at = 0.0
        self._is_reading = False

    @property
    def has_frame(self) -> bool:
        """True if the kept bytes are a whole request, or enough to recognize an invalid one."""
        return self._buffer is not None and self.end >= self._needed

    def resume(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._watcher.add_reader(self._fd, self._on_readable)

    def pause(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._watcher.remove_reader(self._fd)

    def watch_with(self, watcher: Watcher) -> None:
        """Watch the socket with `watcher` from now on."""
        if self._is_reading:
            self._watcher.remove_reader(self._fd)
            watcher.add_reader(self._fd, self._on_readable)
        self._watcher = watcher

    def receive(self) -> int:
        """Read from the socket. Return the number of bytes; 0 if the client sends no more. Check `is_partial` next.

        Raises OSError like a socket.
        """
        if self._buffer is None:
            received = self._socket.recv_into(_scratch)
            self.view = _scratch_view
            self.end = received
        else:
            received = self._socket.recv_into(self.view[self.end :])
            self.end += received
        return received

    @property
    def is_partial(self) -> bool:
        """True if the kept request is still incomplete."""
        return self._buffer is not None and self.end < self._needed

    def keep(self, position: int, needed: int) -> None:
        """Keep the bytes from `position` on, the beginning of a frame of `needed` bytes."""
        rest = self.end - position
        self._needed = needed
        self._frame_started_at = self._loop.time()
        if self._buffer is None:
            if rest:
                self._hold(self.view[position : self.end])
            else:
                self.end = 0
            return
        capacity = len(self.view)
        if rest == 0 and (capacity <= SCRATCH_SIZE or capacity > KEPT_BUFFER or self._memory.is_short):
            self.drop()
        elif capacity < needed:
            self._hold(self.view[position : self.end])
        else:
            if position and rest:
                self.view[:rest] = self.view[position : self.end]  # they may overlap
            self.end = rest

    def memory_granted(self) -> None:
        """Continue reading: memory for the incomplete request is reserved."""
        self.waits_for_memory = False
        self._set_buffer(self._reserved, self.view)
        self._frame_started_at = self._loop.time()
        self.resume()

    def drop(self) -> None:
        """Discard the kept bytes and release their memory."""
        if type(self._buffer) is bytearray and len(self._buffer) > len(_spare[0]):
            _spare[0] = self._buffer
        self._buffer = None
        self.view = _scratch_view[:0]
        self.end = 0
        reserved, self._reserved = self._reserved, 0
        if self.waits_for_memory:
            self.waits_for_memory = False
            self._memory.forget(self)
        elif reserved:
            self._memory.release(reserved)

    def drop_if_empty(self) -> None:
        """Release the memory of an idle connection."""
        if self._buffer is not None and self.end == 0:
            self.drop()

    def keeps_others_waiting(self, now: float) -> bool:
        """Return True if others have waited too long for the memory of the incomplete request."""
        return (
            self._buffer is not None
            and self.end > 0
            and self._memory.is_short
            and self._is_reading
            and now - self._frame_started_at > HOLD_SECONDS
        )

    def _hold(self, content: memoryview | bytes) -> None:
        """Keep `content`, the beginning of the next request, and reserve memory for the rest."""
        self.drop()
        size = self._needed if self._needed <= SCRATCH_SIZE else 1 << (self._needed - 1).bit_length()
        if len(content) >= self._needed or self._memory.reserve(self, size):
            self._reserved = size if len(content) < self._needed else 0
            self._set_buffer(max(size, len(content)), content)
        else:
            self._set_buffer(len(content), content)
            self.waits_for_memory = True
            self._reserved = size
            self.pause()

    def _set_buffer(self, capacity: int, content: memoryview | bytes) -> None:
        # mmap takes memory only as it fills: a client may declare a hundred megabytes and send ten bytes
        if capacity > SCRATCH_SIZE:
            self._buffer = mmap.mmap(-1, capacity)
        elif len(_spare[0]) // 2 < capacity <= len(_spare[0]):
            self._buffer, _spare[0] = _spare[0], bytearray()
        else:
            self._buffer = bytearray(capacity)
        self.view = memoryview(self._buffer)[:capacity]
        self.view[: len(content)] = content
        self.end = len(content)
