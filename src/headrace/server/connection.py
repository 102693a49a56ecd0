"""One plaintext client connection: frames in, answers out, in the order of the requests.

As in Kafka, a connection has one request in hand at a time (Produce requests that have come together count as one):
while an answer is awaited nothing more is read from that client. Reading also stops while answers wait for a client
that does not take them, and while the connection waits for its turn (`server/turns.py`).
"""

import asyncio
import logging
import mmap
import socket
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Final

from headrace.server.busy_poll import SMALL_READ, BusyPoll
from headrace.server.context import ClientInfo, Dispatch
from headrace.server.frames import SIZE_BYTES, InvalidRequestError, Parts, frame_end, named, take_run
from headrace.server.hang_ups import HangUps
from headrace.server.loop_watch import HOLD_NS, LoopWatch
from headrace.server.request_memory import HOLD_SECONDS, RequestMemory
from headrace.server.sending import MAX_BUFFERS_PER_SEND, Sender, UnsentAnswers
from headrace.server.turns import LONG_NS, SLICE_NS, Pace, TimedSteps, Turns

log = logging.getLogger(__name__)

SCRATCH_SIZE: Final = 1024 * 1024
MAX_UNSENT_BYTES: Final = 1024 * 1024
"""Bytes of answers in memory (file regions are not) that are collected before they are sent."""
MAX_FRAMES_PER_TURN: Final = 256
"""Requests of one client that are answered before the others have their turn."""
KEPT_BUFFER: Final = 4 * 1024 * 1024

# Every connection reads into the same scratch memory and copies out what is left of a torn frame: thousands of idle
# connections cost no buffers, and the memory stays in the processor's cache.
_scratch = bytearray(SCRATCH_SIZE)
_scratch_view = memoryview(_scratch)


class Connection(Sender):
    """Drives one non-blocking socket with the loop's reader and writer callbacks."""

    __slots__ = (
        "__weakref__",
        "_buffer",
        "_busy_poll",
        "_clock",
        "_dispatch",
        "_filled",
        "_frame_started_at",
        "_hang_ups",
        "_in_hand",
        "_is_reading",
        "_is_watched",
        "_max_frame",
        "_memory",
        "_needed",
        "_on_closed",
        "_pace",
        "_pending",
        "_reserved",
        "_turns",
        "_view",
        "_waits_for_memory",
        "_waits_for_turn",
        "_watch",
        "client",
        "left_at",
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
        turns: Turns,
        watch: LoopWatch,
        hang_ups: HangUps,
        unsent: UnsentAnswers,
        max_frame: int,
        on_closed: Callable[["Connection"], None],
    ) -> None:
        super().__init__(sock, loop, unsent)
        self.client = client
        self.left_at: float | None = None
        """When the client hung up, if that came to notice."""
        self._dispatch = dispatch
        self._memory = memory
        self._busy_poll = busy_poll
        self._turns = turns
        self._clock = turns.clock
        self._watch = watch
        self._hang_ups = hang_ups
        self._max_frame = max_frame
        self._on_closed = on_closed
        self._buffer: bytearray | mmap.mmap | None = None
        self._view: memoryview = _scratch_view[:0]
        self._filled = 0
        self._needed = SIZE_BYTES
        self._reserved = 0
        self._waits_for_memory = False
        self._waits_for_turn = False
        self._pace = Pace(turns)
        self._is_watched = False
        self._frame_started_at = 0.0
        self._pending: asyncio.Future[Parts] | None = None
        self._in_hand = (0, 0, 0)
        self._is_reading = False

    def start(self) -> None:
        """Begin to read."""
        self._resume_reading()

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is being worked on."""
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
        if self._turns.is_contended and self._pace.must_wait():
            self._wait_for_turn()
        else:
            self._read()

    def _read(self) -> None:
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
        if self._buffer is None:
            came_ns = self._clock()
            answered_ns = self._take_frames(_scratch_view, received, came_ns)
        else:
            self._filled += received
            if self._filled < self._needed:
                return
            came_ns = self._clock()
            answered_ns = self._take_frames(self._view, self._filled, came_ns)
        if answered_ns and received < SMALL_READ and self._pending is None:
            self._busy_poll.answered(came_ns, answered_ns)

    def _take_frames(self, view: memoryview, end: int, began_ns: int) -> int:
        """Answer whole frames in `view[:end]`, for one turn, and keep what is left for later.

        Returns the time afterwards by the clock of turns, or 0 where no frame was complete or the connection has ended.
        """
        if self._pace.long_turns:
            self._pace.begin()
        position = taken = 0
        needed = SIZE_BYTES
        now_ns = began_ns
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
                before_ns, now_ns = now_ns, self._clock()
                if now_ns - before_ns >= HOLD_NS:
                    self._watch.held_by(self.client, named(frames[0]), len(frames), now_ns - before_ns)
                if type(answer) is list:
                    self._queue(answer)
                    if len(self._out) >= MAX_BUFFERS_PER_SEND or self._unsent > MAX_UNSENT_BYTES:
                        self._flush()
                        if self._out or self.is_closed:
                            break
                    if taken >= MAX_FRAMES_PER_TURN or now_ns - began_ns >= SLICE_NS:
                        break
                else:
                    self._await_answer(answer, frames[0])  # type: ignore[arg-type]
                    break
        except InvalidRequestError as error:
            self._end_after(error)
            return 0
        if not self.is_closed:
            self._keep_rest(view, position, end, needed)
        now_ns = self._end_turn(began_ns)
        return now_ns if taken else 0

    def _end_turn(self, began_ns: int) -> int:
        """Send what was answered and decide how to go on; the time, or 0 where the connection has ended."""
        if self._out:
            self._flush()
        if self.is_closed:
            return 0
        now_ns = self._clock()
        took_ns = now_ns - began_ns
        if took_ns >= LONG_NS:
            self._pace.took(took_ns)
        if self._pending is None:
            self._pace.ended(took_ns)
        if self._pending is not None:
            self._pause_reading()
        elif not self._out and self._has_more():
            self._wait_for_turn()
        return now_ns

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

    def _await_answer(self, answer: Awaitable[Parts], frame: memoryview) -> None:
        self._in_hand = named(frame)
        if isinstance(answer, CoroutineType):
            answer = TimedSteps(answer, self._step_took, self._clock)
        self._pending = asyncio.ensure_future(answer, loop=self._loop)
        self._pending.add_done_callback(self._on_answer)
        if not self._is_watched:
            self._is_watched = True
            self._hang_ups.watch(self._fd, self._client_left)
        if self.left_at is not None:
            self._give_up()

    def _step_took(self, ns: int) -> None:
        self._pace.took(ns)
        if ns >= HOLD_NS:
            self._watch.held_by(self.client, self._in_hand, 1, ns)

    def _client_left(self) -> None:
        # It may still read answers: that it sends no more is all that is known.
        self.left_at = self._loop.time()
        self.client.has_left = True
        if self._pending is not None:
            self._give_up()

    def _give_up(self) -> None:
        if self.client.give_up is not None:
            self.client.give_up()

    def _on_answer(self, answer: "asyncio.Future[Parts]") -> None:
        self._pending = None
        self._pace.is_fresh = False
        if answer.cancelled():
            return
        error = answer.exception()
        if self.is_closed:
            return
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
            if self._pace.must_wait():
                self._wait_for_turn()
                return
            self._take_frames(self._view, self._filled, self._clock())
            if self._is_busy():
                return
        self._resume_reading()

    def _wait_for_turn(self) -> None:
        self._waits_for_turn = True
        self._pause_reading()
        self._turns.add(self, self._pace.kind())

    def _on_writable(self) -> None:
        if self._turns.is_contended and self._pace.must_wait():
            self._stop_writing()
            self._wait_for_turn()
        else:
            self._send_more()

    def _send_more(self) -> None:
        began_ns = self._clock()
        self._pace.begin()
        self.last_active_at = self._loop.time()
        self._flush()
        took_ns = self._clock() - began_ns
        if took_ns >= LONG_NS:
            self._pace.took(took_ns)
        self._go_on()

    def take_turn(self) -> None:
        """Send what waits, or else take frames that have come, or read."""
        self._waits_for_turn = False
        if self._out and not self.is_closed:
            self._send_more()
            return
        if self._is_busy():
            return
        if self._has_more():
            self._take_frames(self._view, self._filled, self._clock())
        else:
            self._read()
        if not self._is_busy():
            self._resume_reading()

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

    def leave(self) -> None:
        """End the connection, but let a request that changes something, such as a JoinGroup, go on, as Kafka does."""
        if self.client.give_up is None:
            self._pending = None
        self.close(None)

    def close(self, reason: str | None) -> None:
        """End the connection and cancel its request; `reason` is logged unless it is None, the ordinary end."""
        if self.is_closed:
            return
        self.is_closed = True
        if reason is not None:
            log.warning("Closing connection of %s: %s", self.client, reason)
        self._pause_reading()
        self._stop_writing()
        if self._pending is not None:
            # Not at once: what it would await is never awaited where it has not begun, and Python complains of that.
            self._loop.call_soon(self._pending.cancel)
        self._drop_buffer()
        self._out.clear()
        self._all_unsent.forget(self)
        if self._is_watched:
            self._hang_ups.forget(self._fd)
        self._socket.close()
        self._on_closed(self)
