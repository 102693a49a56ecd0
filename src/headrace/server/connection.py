"""One plaintext client connection, which sends replies in the order of the requests.

As in Kafka, a connection handles one request at a time, and reads no more until the reply is ready. Produce requests
that arrive together count as one. While they wait for followers, further Produce requests are appended, up to
`MAX_RUNS`: otherwise acks=all would append once per round trip to the followers. Reading also stops while the client
does not read its replies, and while the connection waits for its turn (`server/loop/turns.py`).
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from types import CoroutineType
from typing import Final

from headrace.promise import Promise
from headrace.server.context import ClientInfo, Dispatch
from headrace.server.frames import SIZE_BYTES, InvalidRequestError, Parts, frame_end, identify, is_produce, take_run
from headrace.server.loop.busy_poll import SMALL_READ, BusyPoll
from headrace.server.loop.hang_ups import HangUps
from headrace.server.loop.loop_watch import HOLD_NS, LoopWatch
from headrace.server.loop.turns import LIGHT, LONG_NS, SLICE_NS, Pace, TimedSteps, Turns
from headrace.server.loop.urgent import Urgency, UrgentReads
from headrace.server.receiving import Receiver
from headrace.server.request_memory import HOLD_SECONDS, RequestMemory
from headrace.server.runs import Executed, Later, Lost, Runs, abandon
from headrace.server.sending import Sender, UnsentAnswers

log = logging.getLogger(__name__)

MAX_FRAMES_PER_TURN: Final = 256
"""A turn ends after this many requests of one client."""

MAX_RUNS: Final = 32
"""Maximum number of one client's replies that wait for followers, or for earlier replies that do."""


class Connection:
    """Drives one non-blocking socket with the loop's reader and writer callbacks."""

    __slots__ = (
        "_busy_poll",
        "_clock",
        "_dispatch",
        "_fd",
        "_hang_ups",
        "_in_hand",
        "_is_taking",
        "_is_watched",
        "_loop",
        "_max_frame",
        "_on_closed",
        "_pace",
        "_pending",
        "_receiver",
        "_runs",
        "_sender",
        "_socket",
        "_turns",
        "_urgency",
        "_waits_for_runs",
        "_waits_for_turn",
        "_watch",
        "client",
        "hung_up_at",
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
        turns: Turns,
        urgent: UrgentReads,
        watch: LoopWatch,
        hang_ups: HangUps,
        unsent: UnsentAnswers,
        max_frame: int,
        on_closed: Callable[["Connection"], None],
    ) -> None:
        self.client = client
        self.is_closed = False
        self.last_active_at = loop.time()
        self.hung_up_at: float | None = None
        """Time of the hang-up; None if the broker has not noticed one."""
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._receiver = Receiver(sock, loop, memory, self._on_readable)
        self._urgency = Urgency(urgent, loop, self._receiver)
        self._sender = Sender(
            sock, loop, unsent, on_writable=self._on_writable, on_sent=self._on_sent, on_broken=self.close
        )
        self._dispatch = dispatch
        self._busy_poll = busy_poll
        self._turns = turns
        self._clock = turns.clock
        self._watch = watch
        self._hang_ups = hang_ups
        self._max_frame = max_frame
        self._on_closed = on_closed
        self._waits_for_turn = False
        self._pace = Pace(turns)
        self._is_watched = False
        self._is_taking = False
        """True while frames are being handled."""
        self._pending: Later | None = None
        self._in_hand = (0, 0, 0)
        self._runs = Runs()
        """Replies in order, beginning with one that waits for followers."""
        self._waits_for_runs = False
        """True if the next request must wait for replies in `_runs`. Stays True after an invalid request."""

    def start(self) -> None:
        self._receiver.resume()

    @property
    def is_waiting(self) -> bool:
        """True if a request has not been answered yet."""
        return self._pending is not None or bool(self._runs)

    # Reading

    def _on_readable(self) -> None:
        if self._pending is not None or self._sender.out or self._waits_for_turn or self._waits_for_runs:
            # the client has sent more before its reply, does not read its replies, or has used up its turn
            self._receiver.pause()
            return
        if self._urgency.is_urgent and self._pace.kind() == LIGHT:
            self._read()
        elif self._turns.is_contended and self._pace.must_wait():
            self._wait_for_turn()
        else:
            self._urgency.let_others_go_first()
            self._read()

    def _read(self) -> None:
        receiver = self._receiver
        try:
            received = receiver.receive()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close(None)
            return
        if received == 0:
            self.close("the client disconnected in the middle of a request" if receiver.end else None)
            return
        self.last_active_at = self._loop.time()
        if receiver.is_partial:
            return
        came_ns = self._clock()
        answered_ns = self._take_frames(came_ns)
        if answered_ns and received < SMALL_READ and self._pending is None and not self.client.is_broker:
            self._busy_poll.answered(came_ns, answered_ns)

    def _take_frames(self, began_ns: int) -> int:
        """Handle complete frames for one turn, and keep the remaining bytes.

        Return the time at the end (`Turns.clock`), or 0 if no frame was complete or the connection was closed.
        """
        if self._pace.long_turns:
            self._pace.begin()
        view, end = self._receiver.view, self._receiver.end
        position = taken = 0
        needed = SIZE_BYTES
        now_ns = began_ns
        self._is_taking = True
        try:
            while end - position >= SIZE_BYTES:
                stop = frame_end(view, position, end, self._max_frame)
                if stop > end:
                    needed = stop - position
                    break
                if self._runs and self._must_wait_for_runs(view, position, stop):
                    break
                frames, position = take_run(view, position, stop, end, self._max_frame)
                taken += len(frames)
                if self._urgency.may_change:
                    self._urgency.note(identify(frames[0])[0])
                if len(frames) == 1:
                    answer = self._dispatch.handle(self.client, frames[0])
                else:
                    answer = self._dispatch.handle_run(self.client, frames)
                before_ns, now_ns = now_ns, self._clock()
                if now_ns - before_ns >= HOLD_NS:
                    self._watch.held_by(self.client, identify(frames[0]), len(frames), now_ns - before_ns)
                if not self._accept(answer, frames[0]) or taken >= MAX_FRAMES_PER_TURN or now_ns - began_ns >= SLICE_NS:
                    break
        except InvalidRequestError as error:
            self._end_after(error)
            return 0
        finally:
            self._is_taking = False
        if not self.is_closed:
            self._receiver.keep(position, needed)
        now_ns = self._end_turn(began_ns)
        return now_ns if taken else 0

    def _end_turn(self, began_ns: int) -> int:
        """Send replies and decide how to continue; return the time, or 0 if the connection was closed."""
        if self._sender.out:
            self._sender.flush()
        if self.is_closed:
            return 0
        now_ns = self._clock()
        took_ns = now_ns - began_ns
        if took_ns >= LONG_NS:
            self._pace.note_long(took_ns)
        if self._pending is None or isinstance(self._pending, Promise):  # a promise only waits: it has no steps
            self._pace.ended(took_ns)
        if self._pending is not None or self._waits_for_runs:
            if self._receiver.end:
                self._receiver.pause()
            # Otherwise keep watching the socket: most clients send nothing before the reply, and pausing costs more.
        elif not self._sender.out and self._receiver.has_frame:
            self._wait_for_turn()
        return now_ns

    def _end_after(self, error: InvalidRequestError) -> None:
        if self._runs:
            self._runs.end(error)
            self._waits_for_runs = True
            self._receiver.pause()
            return
        self._sender.queue(error.answers)
        self._sender.flush()
        self.close(str(error))

    # Answering

    def _accept(self, answer: Parts | Awaitable[Parts], frame: memoryview) -> bool:
        """Send a reply, or wait for it. Return True if the next request may be handled."""
        if self.is_closed:  # while this request was handled, a reply to an earlier one could not be sent
            abandon(answer, self._loop)
            return False
        if type(answer) is list:
            self._queue(answer)
            if self._sender.is_full:
                self._sender.flush()
                return not (self._sender.out or self.is_closed)
            return True
        if type(answer) is Executed:
            self._await_run(answer)
            return True
        self._await_answer(answer, frame)  # type: ignore[arg-type]
        return False

    def _must_wait_for_runs(self, view: memoryview, position: int, stop: int) -> bool:
        """Return True if the request must wait until followers have the records of earlier requests."""
        self._waits_for_runs = len(self._runs) >= MAX_RUNS or not is_produce(view, position, stop)
        return self._waits_for_runs

    def _queue(self, parts: Parts) -> None:
        """Send a reply after those to earlier requests."""
        if self._runs:
            self._runs.append(parts)
        else:
            self._sender.queue(parts)

    def _await_run(self, answer: Executed[Parts]) -> None:
        """Reply later, but handle the client's next Produce requests meanwhile."""
        reply = answer.reply
        run = reply if isinstance(reply, Promise) else asyncio.ensure_future(reply, loop=self._loop)
        self._runs.append(run)
        run.add_done_callback(self._on_run)

    def _on_run(self, run: Later) -> None:
        if len(self._runs) > 1 and isinstance(run, Promise):
            self._loop.call_soon(self._send_runs, run)  # send it together with replies that are about to be ready
        else:
            self._send_runs(run)

    def _send_runs(self, run: Later) -> None:
        """Send the finished replies, up to the first unfinished one."""
        before = len(self._runs)
        for reply in self._runs.take_done():
            if isinstance(reply, Lost):
                self.close(reply.reason)
            elif isinstance(reply, InvalidRequestError):
                self._sender.queue(reply.answers)
                self._sender.flush()
                self.close(str(reply))
            else:
                self._sender.queue(reply)
            if self.is_closed:
                return
        if len(self._runs) == before:
            return
        self._waits_for_runs = self._runs.is_ended
        self.last_active_at = self._loop.time()
        self._sender.flush()
        self._resume(run)

    def _await_answer(self, answer: Awaitable[Parts], frame: memoryview) -> None:
        self._in_hand = identify(frame)
        if isinstance(answer, CoroutineType):
            answer = TimedSteps(answer, self._on_long_step, self._clock)
        pending = answer if isinstance(answer, Promise) else asyncio.ensure_future(answer, loop=self._loop)
        self._pending = pending
        pending.add_done_callback(self._on_answer)
        if not self._is_watched:
            self._is_watched = True
            self._hang_ups.watch(self._fd, self._on_hang_up)
        if self.hung_up_at is not None:
            self._give_up()

    def _on_long_step(self, ns: int) -> None:
        self._pace.note_long(ns)
        if ns >= HOLD_NS:
            self._watch.held_by(self.client, self._in_hand, 1, ns)

    def _on_hang_up(self) -> None:
        # the client will send no more, but may still read replies
        self.hung_up_at = self._loop.time()
        self.client.has_hung_up = True
        if self._pending is not None:
            self._give_up()

    def _give_up(self) -> None:
        if self.client.give_up is not None:
            self.client.give_up()

    def _on_answer(self, answer: Later) -> None:
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
        self._sender.flush()
        self._resume(answer)

    def _resume(self, answer: Later | None = None) -> None:
        """Handle the frames that have already been received, then resume reading.

        The frames wait for their own turn if other connections must go first, or if `answer` is a promise: a promise
        calls back within the turn that completed it, often a turn of another connection.
        """
        if self._is_taking or self._is_busy():
            return
        if self._receiver.has_frame:
            if isinstance(answer, Promise) or self._pace.must_wait():
                self._wait_for_turn()
                return
            self._take_frames(self._clock())
            if self._is_busy():
                return
        self._receiver.resume()

    def _wait_for_turn(self) -> None:
        # does not pause the receiver: the turn usually comes before the loop polls the sockets again
        self._waits_for_turn = True
        self._turns.add(self, self._pace.kind())

    def _on_writable(self) -> None:
        if self._turns.is_contended and self._pace.must_wait():
            self._sender.stop_writing()
            self._wait_for_turn()
        else:
            self._send_more()

    def _on_sent(self) -> None:
        self.last_active_at = self._loop.time()
        self._resume()

    def _send_more(self) -> None:
        began_ns = self._clock()
        self._pace.begin()
        self.last_active_at = self._loop.time()
        self._sender.flush()
        took_ns = self._clock() - began_ns
        if took_ns >= LONG_NS:
            self._pace.note_long(took_ns)
        self._resume()

    def take_turn(self) -> None:
        """Send queued replies; if there are none, handle received frames; otherwise read from the socket."""
        self._waits_for_turn = False
        if self._sender.out and not self.is_closed:
            self._send_more()
            return
        if self._is_busy():
            return
        self._urgency.let_others_go_first()
        if self._receiver.has_frame:
            self._take_frames(self._clock())
        else:
            self._read()
        if not self._is_busy():
            self._receiver.resume()

    def _is_busy(self) -> bool:
        return (
            self.is_closed
            or self._pending is not None
            or self._waits_for_runs
            or self._receiver.waits_for_memory
            or self._waits_for_turn
            or bool(self._sender.out)
        )

    # Ending

    def check_patience(self, now: float) -> None:
        """Release idle memory, and close a connection whose incomplete request keeps others waiting."""
        if now - self.last_active_at > HOLD_SECONDS:
            self._receiver.drop_if_empty()
        if self._receiver.keeps_others_waiting(now):
            self.close(f"a request took more than {HOLD_SECONDS:.0f} s to arrive while others waited for its memory")

    def leave(self) -> None:
        """Close the connection. As in Kafka, a waiting request that changes state, such as JoinGroup, is completed."""
        if self.client.give_up is None:
            self._pending = None
        self.close(None)

    def close(self, reason: str | None) -> None:
        """Close the connection and cancel its requests. Log `reason`; None means a normal end."""
        if self.is_closed:
            return
        self.is_closed = True
        if reason is not None:
            log.warning("Closing connection from %s: %s", self.client, reason)
        self._receiver.pause()
        if self._pending is not None:
            # later, because Python warns if a task is cancelled before its coroutine has started
            self._loop.call_soon(self._pending.cancel)
        self._runs.cancel(self._loop)
        self._receiver.drop()
        self._sender.drop()
        if self._is_watched:
            self._hang_ups.forget(self._fd)
        self._socket.close()
        self._on_closed(self)
