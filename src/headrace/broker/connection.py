"""One plaintext client connection: frames in, answers out, in the order of the requests.

As in Kafka, a connection has one request in hand at a time (Produce requests that have come together count as one):
while an answer is awaited nothing more is read from that client. Reading also stops while answers wait for a client
that does not take them. File regions go out with `sendfile`, so the bytes of a fetch never enter this process.
"""

import asyncio
import errno
import logging
import mmap
import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

from headrace.broker import cold_reads
from headrace.broker.busy_poll import SMALL_READ, BusyPoll
from headrace.broker.context import ClientInfo
from headrace.broker.frames import SIZE_BYTES, InvalidRequestError, Part, Parts, frame_end, take_run
from headrace.broker.request_memory import HOLD_SECONDS, RequestMemory
from headrace.storage.log_file import FileSlice

log = logging.getLogger(__name__)

SCRATCH_SIZE: Final = 1024 * 1024
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Bytes of answers in memory (file regions are not) that are collected before they are sent."""
MAX_FRAMES_PER_TURN: Final = 256
"""Requests of one client that are answered before the others have their turn."""
KEPT_BUFFER: Final = 4 * 1024 * 1024
MAX_BUFFERS_PER_SEND: Final = 64
_MORE: Final = getattr(socket, "MSG_MORE", 0)

# Every connection reads into the same scratch memory and copies out what is left of a torn frame: thousands of idle
# connections cost no buffers, and the memory stays in the processor's cache.
_scratch = bytearray(SCRATCH_SIZE)
_scratch_view = memoryview(_scratch)


class Dispatch(Protocol):
    """Turns frames into the parts of their answers, now or later. Raises InvalidRequestError."""

    def handle(self, client: ClientInfo, frame: memoryview) -> Parts | Awaitable[Parts]: ...

    def handle_run(self, client: ClientInfo, frames: Sequence[memoryview]) -> Parts | Awaitable[Parts]:
        """The answers to several Produce requests."""


class Connection:
    """Drives one non-blocking socket with the loop's reader and writer callbacks."""

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_busy_poll",
        "_dispatch",
        "_fd",
        "_filled",
        "_frame_started_at",
        "_is_reading",
        "_is_writing",
        "_loop",
        "_max_frame",
        "_memory",
        "_needed",
        "_on_closed",
        "_out",
        "_pending",
        "_reserved",
        "_socket",
        "_unsent",
        "_view",
        "_waits_for_disk",
        "_waits_for_memory",
        "_waits_for_turn",
        "client",
        "is_closed",
        "last_active_at",
    )

    def __init__(
        self,
        sock: socket.socket,
        client: ClientInfo,
        *,
        loop: asyncio.AbstractEventLoop,
        dispatch: Dispatch,
        memory: RequestMemory,
        busy_poll: BusyPoll,
        max_frame: int,
        on_closed: Callable[["Connection"], None],
    ) -> None:
        self.client = client
        self.is_closed = False
        self.last_active_at = loop.time()
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._dispatch = dispatch
        self._memory = memory
        self._busy_poll = busy_poll
        self._max_frame = max_frame
        self._on_closed = on_closed
        self._buffer: bytearray | mmap.mmap | None = None
        self._view: memoryview = _scratch_view[:0]
        self._filled = 0
        self._needed = SIZE_BYTES
        self._reserved = 0
        self._waits_for_disk = False
        self._waits_for_memory = False
        self._waits_for_turn = False
        self._frame_started_at = 0.0
        self._out: deque[Part] = deque()
        self._unsent = 0
        self._pending: asyncio.Future[Parts] | None = None
        self._is_reading = False
        self._is_writing = False

    def start(self) -> None:
        """Begin to read."""
        self._resume_reading()

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is being worked on: such a connection is not idle."""
        return self._pending is not None

    # Reading

    def _resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _pause_reading(self) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._fd)

    def _on_readable(self) -> None:
        if self._out:
            # The client has more to ask but does not take its answers.
            self._pause_reading()
            return
        try:
            if self._buffer is None:
                received = self._socket.recv_into(_scratch)
            else:
                received = self._socket.recv_into(self._view[self._filled :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close(None)
            return
        if received == 0:
            self.close("the connection ended inside a request" if self._filled else None)
            return
        self.last_active_at = self._loop.time()
        came_ns = self._busy_poll.clock() if received < SMALL_READ else 0
        taken = 0
        if self._buffer is None:
            taken = self._take_frames(_scratch_view, received)
        else:
            self._filled += received
            if self._filled >= self._needed:
                taken = self._take_frames(self._view, self._filled)
        if came_ns and taken and self._pending is None:
            self._busy_poll.answered(came_ns)

    def _take_frames(self, view: memoryview, end: int) -> int:
        """Answer the whole frames in `view[:end]` and keep what is left for later; how many there were."""
        position = taken = 0
        needed = SIZE_BYTES
        try:
            while end - position >= SIZE_BYTES:
                stop = frame_end(view, position, end, self._max_frame)
                if stop > end:
                    needed = stop - position
                    break
                frames, position = take_run(view, position, stop, end, self._max_frame)
                taken += len(frames)
                if len(frames) == 1:
                    answer = self._dispatch.handle(self.client, frames[0])
                else:
                    answer = self._dispatch.handle_run(self.client, frames)
                if type(answer) is list:
                    self._queue(answer)
                    if len(self._out) >= MAX_BUFFERS_PER_SEND or self._unsent > MAX_UNSENT_BYTES:
                        self._flush()
                        if self._out or self.is_closed:
                            break
                    if taken >= MAX_FRAMES_PER_TURN:
                        break
                else:
                    self._await_answer(answer)  # type: ignore[arg-type]
                    break
        except InvalidRequestError as error:
            self._end_after(error)
            return 0
        if not self.is_closed:
            self._keep_rest(view, position, end, needed)
        if self._out:
            self._flush()
        if self.is_closed:
            return 0
        if self._pending is not None:
            self._pause_reading()
        elif not self._out and self._has_more():
            self._waits_for_turn = True
            self._pause_reading()
            self._loop.call_soon(self._take_turn)
        return taken

    def _end_after(self, error: InvalidRequestError) -> None:
        self._queue(error.answers)
        self._flush()
        self.close(str(error))

    def _keep_rest(self, view: memoryview, position: int, end: int, needed: int) -> None:
        rest = end - position
        self._needed = needed
        self._frame_started_at = self._loop.time()
        if view is _scratch_view:
            if rest:
                self._hold(view[position:end])
            return
        capacity = len(self._view)
        if rest == 0 and (capacity <= SCRATCH_SIZE or capacity > KEPT_BUFFER or self._memory.is_short):
            self._drop_buffer()
        elif capacity < needed:
            self._hold(bytes(view[position:end]))
        else:
            if position and rest:
                self._view[:rest] = bytes(view[position:end])
            self._filled = rest

    def _hold(self, content: memoryview | bytes) -> None:
        """Keep `content`, the beginning of the next request, with room for the rest of it once memory allows."""
        self._drop_buffer()
        size = self._needed if self._needed <= SCRATCH_SIZE else 1 << (self._needed - 1).bit_length()
        if len(content) >= self._needed or self._memory.reserve(self, size):
            self._reserved = size if len(content) < self._needed else 0
            self._set_buffer(max(size, len(content)), content)
        else:
            self._set_buffer(len(content), content)
            self._waits_for_memory = True
            self._reserved = size
            self._pause_reading()

    def _set_buffer(self, capacity: int, content: memoryview | bytes) -> None:
        # A large one only costs memory as it fills: a client may announce a hundred megabytes and send ten bytes.
        self._buffer = bytearray(capacity) if capacity <= SCRATCH_SIZE else mmap.mmap(-1, capacity)
        self._view = memoryview(self._buffer)
        self._view[: len(content)] = content
        self._filled = len(content)

    def memory_granted(self) -> None:
        """The memory for the request that was begun is reserved; read on."""
        self._waits_for_memory = False
        self._set_buffer(self._reserved, self._view)
        self._frame_started_at = self._loop.time()
        self._resume_reading()

    def _drop_buffer(self) -> None:
        self._buffer = None
        self._view = _scratch_view[:0]
        self._filled = 0
        reserved, self._reserved = self._reserved, 0
        if self._waits_for_memory:
            self._waits_for_memory = False
            self._memory.forget(self)
        elif reserved:
            self._memory.release(reserved)

    # Answering

    def _await_answer(self, answer: Awaitable[Parts]) -> None:
        self._pending = asyncio.ensure_future(answer, loop=self._loop)
        self._pending.add_done_callback(self._on_answer)

    def _on_answer(self, answer: "asyncio.Future[Parts]") -> None:
        self._pending = None
        if self.is_closed or answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, InvalidRequestError):
            self._end_after(error)
            return
        if error is not None:
            self.close(f"{type(error).__name__}: {error}")
            return
        self.last_active_at = self._loop.time()
        self._queue(answer.result())
        self._flush()
        self._go_on()

    def _go_on(self) -> None:
        """Take what the client has sent in the meantime, then read."""
        if self._is_busy():
            return
        if self._has_more():
            self._take_frames(self._view, self._filled)
            if self._is_busy():
                return
        self._resume_reading()

    def _take_turn(self) -> None:
        self._waits_for_turn = False
        self._go_on()

    def _has_more(self) -> bool:
        return self._buffer is not None and self._filled >= self._needed

    def _is_busy(self) -> bool:
        return (
            self.is_closed
            or self._pending is not None
            or self._waits_for_memory
            or self._waits_for_turn
            or bool(self._out)
        )

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
            return
        except OSError as error:
            self.close(f"its records cannot be read: {error.strerror}" if error.errno == errno.EIO else None)
            return
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
        if self._is_writing:
            self._is_writing = False
            self._loop.remove_writer(self._fd)
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

    def _on_writable(self) -> None:
        self.last_active_at = self._loop.time()
        self._flush()
        self._go_on()

    # Ending

    def check_patience(self, now: float) -> None:
        """Called every few seconds: give idle memory back, and end a frame that keeps others waiting."""
        if self._buffer is None:
            return
        if self._filled == 0 and now - self.last_active_at > HOLD_SECONDS:
            self._drop_buffer()
        elif (
            self._filled and self._memory.is_short and self._is_reading and now - self._frame_started_at > HOLD_SECONDS
        ):
            self.close(f"a request took over {HOLD_SECONDS:.0f} s to arrive while others waited for its memory")

    def close(self, reason: str | None) -> None:
        """End the connection; `reason` is logged unless it is None, the ordinary end."""
        if self.is_closed:
            return
        self.is_closed = True
        if reason is not None:
            log.warning(
                "Closing connection of client id %s at %s:%d (%s %s): %s",
                self.client.client_id,
                self.client.host,
                self.client.port,
                self.client.software_name,
                self.client.software_version,
                reason,
            )
        self._pause_reading()
        if self._is_writing:
            self._loop.remove_writer(self._fd)
        if self._pending is not None:
            # Not at once: what it would await is never awaited where it has not begun, and Python complains of that.
            self._loop.call_soon(self._pending.cancel)
        self._drop_buffer()
        self._out.clear()
        self._socket.close()
        self._on_closed(self)
