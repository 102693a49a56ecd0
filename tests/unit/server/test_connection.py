"""A connection over a real socket pair: framing, order, back-pressure, invalid lengths."""

import asyncio
import errno
import logging
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from headrace.promise import Promise
from headrace.server.connection import MAX_FRAMES_PER_TURN, MAX_RUNS, Connection
from headrace.server.context import ClientInfo
from headrace.server.frames import MAX_RUN, InvalidRequestError, Parts
from headrace.server.loop.busy_poll import BusyPoll
from headrace.server.loop.hang_ups import HangUps
from headrace.server.loop.loop_watch import LoopWatch
from headrace.server.loop.turns import HEAVY, LIGHT, Turns
from headrace.server.loop.urgent import UrgentReads
from headrace.server.request_memory import RequestMemory
from headrace.server.runs import Executed
from headrace.server.sending import MAX_UNSENT_BYTES, UnsentAnswers
from headrace.storage.files.log_file import FileSlice, LogFile

MAX_FRAME = 8 * 1024 * 1024
PRODUCE = b"\0\0"


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class OtherConnection:
    """A connection that waits for memory."""

    def memory_granted(self) -> None:
        pass


class CountingPoll(BusyPoll):
    answers = 0

    def answered(self, came_ns: int, answered_ns: int) -> None:
        self.answers += 1
        super().answered(came_ns, answered_ns)


class Peer:
    """A client socket and the server's connection."""

    def __init__(
        self,
        memory_limit: int = 1 << 30,
        unsent: UnsentAnswers | None = None,
        urgent: UrgentReads | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self.requests: list[bytes] = []
        self.runs: list[int] = []
        self.answer: Callable[[bytes], Parts | Awaitable[Parts]] = lambda body: [frame(body)]
        self.closed = asyncio.Event()
        server, client = socket.socketpair()
        for item in (server, client):
            item.setblocking(False)
        self.socket = client
        self.loop = asyncio.get_running_loop()
        self.memory = RequestMemory(memory_limit)
        self.busy_poll = CountingPoll(self.loop.call_soon, 0)
        self.turns_queue = Turns(self.loop.call_soon, clock)
        self.watch = LoopWatch(self.loop)
        self.hang_ups = HangUps(self.loop)
        self.urgent = UrgentReads(self.loop) if urgent is None else urgent
        self.unsent = UnsentAnswers() if unsent is None else unsent
        self.connection = Connection(
            server,
            ClientInfo(listener="PLAINTEXT", host="192.0.2.1", port=7, local_address=("192.0.2.2", 9092)),
            loop=self.loop,
            dispatch=self,
            memory=self.memory,
            busy_poll=self.busy_poll,
            turns=self.turns_queue,
            watch=self.watch,
            hang_ups=self.hang_ups,
            urgent=self.urgent,
            unsent=self.unsent,
            max_frame=MAX_FRAME,
            on_closed=lambda _: self.closed.set(),
        )
        self.connection.start()

    def handle(self, client: ClientInfo, frame: memoryview) -> Parts | Awaitable[Parts]:
        assert client.port == 7
        self.requests.append(bytes(frame))
        return self.answer(bytes(frame))

    def handle_run(self, client: ClientInfo, frames: Sequence[memoryview]) -> Parts | Awaitable[Parts]:
        self.runs.append(len(frames))
        return [part for frame in frames for part in self._parts(client, frame)]

    def _parts(self, client: ClientInfo, frame: memoryview) -> Parts:
        answer = self.handle(client, frame)
        assert isinstance(answer, list)
        return answer

    async def send(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.socket, data)

    async def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = await self.loop.sock_recv(self.socket, size - len(data))
            if not chunk:
                break
            data += chunk
        return bytes(data)

    async def turns(self, count: int = 5) -> None:
        """Let the event loop run everything that is ready."""
        for _ in range(count):
            await asyncio.sleep(0)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    peer = Peer()
    yield peer
    peer.connection.close(None)
    peer.socket.close()
    assert peer.memory.used == 0


async def test_frames_of_any_size_are_answered(peer: Peer) -> None:
    for size in (0, 1, 1000, 200_000, 1_100_000, 5_000_000):
        body = bytes(i % 251 for i in range(min(size, 1000))) * (size // 1000 or 1)
        for _ in range(2):
            sending = asyncio.ensure_future(peer.send(frame(body)))
            assert await peer.receive(len(body) + 4) == frame(body)
            await sending


async def test_a_frame_may_arrive_byte_by_byte(peer: Peer) -> None:
    for byte in frame(b"hello") + frame(b"world"):
        await peer.send(bytes((byte,)))
        await peer.turns()

    assert await peer.receive(18) == frame(b"hello") + frame(b"world")


async def test_many_frames_cut_anywhere_keep_their_order(peer: Peer) -> None:
    data = b"".join(frame(b"%d" % number * (number % 40)) for number in range(200))

    async def send(piece: int) -> None:
        for start in range(0, len(data), piece):
            await peer.send(data[start : start + piece])

    for piece in (7, 28, 91, 175):
        sending = asyncio.ensure_future(send(piece))
        assert await peer.receive(len(data)) == data
        await sending


async def test_the_next_request_waits_for_the_previous_reply(peer: Peer) -> None:
    later: asyncio.Future[Parts] = peer.loop.create_future()
    peer.answer = lambda body: later if body == b"slow" else [frame(body)]

    await peer.send(frame(b"slow") + frame(b"next") + frame(b"last")[:6])
    await peer.turns()
    assert peer.requests == [b"slow"]
    later.set_result([frame(b"done")])
    await peer.send(frame(b"last")[6:])

    assert await peer.receive(24) == frame(b"done") + frame(b"next") + frame(b"last")


async def test_other_brokers_do_not_start_busy_polling(peer: Peer) -> None:
    peer.connection.client.is_broker = True
    await peer.send(frame(b"one"))
    await peer.receive(7)
    assert peer.busy_poll.answers == 0


async def test_busy_polling_follows_replies_to_small_requests_only(peer: Peer) -> None:
    await peer.send(frame(b"one") + frame(b"two"))
    await peer.receive(14)
    assert peer.busy_poll.answers == 1

    large = frame(bytes(20_000))
    for byte in large[:50]:
        await peer.send(bytes([byte]))
        await peer.turns(2)
    await peer.send(large[50:])
    await peer.receive(len(large))
    assert peer.busy_poll.answers == 1

    later: asyncio.Future[Parts] = asyncio.get_running_loop().create_future()
    peer.answer = lambda _: later
    await peer.send(frame(b"slow"))
    await peer.turns()
    later.set_result([frame(b"done")])
    await peer.receive(8)
    assert peer.busy_poll.answers == 1


async def test_a_disk_error_while_sending_closes_the_connection_and_is_logged(
    peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "segment"
    path.write_bytes(bytes(1000))
    parts: Parts = [FileSlice(LogFile.open(path), 0, 1000)]
    peer.answer = lambda _: parts
    monkeypatch.setattr(os, "sendfile", fail)

    await peer.send(frame(b"fetch"))
    await asyncio.wait_for(peer.closed.wait(), 5)

    assert "cannot read the records to send: Input/output error" in caplog.text


async def test_file_regions_are_sent_between_bytes(peer: Peer, tmp_path: Path) -> None:
    path = tmp_path / "segment"
    path.write_bytes(bytes(range(256)) * 5_000)
    file = LogFile.open(path)
    parts: Parts = [b"head", FileSlice(file, 10, 1_200_000), b"tail", FileSlice(file, 0, 3)]
    peer.answer = lambda _: parts

    await peer.send(frame(b"x"))

    expected = b"head" + path.read_bytes()[10:1_200_010] + b"tail" + bytes(range(3))
    assert await peer.receive(len(expected)) == expected


async def test_no_more_is_read_from_a_slow_client_until_it_reads_and_it_gets_all_replies(peer: Peer) -> None:
    """A full request buffer must not end the connection."""
    answer = bytes(100_000)
    peer.answer = lambda _: [answer]
    count = 100

    sending = asyncio.ensure_future(peer.send(frame(b"x" * 8_000) * count))
    await peer.turns(200)
    assert len(peer.requests) < count
    assert peer.connection._sender.unsent < MAX_UNSENT_BYTES + 2 * len(answer)

    assert len(await peer.receive(count * len(answer))) == count * len(answer)
    await sending


async def test_a_client_with_many_requests_takes_turns_with_the_others(peer: Peer) -> None:
    peer.answer = lambda _: []
    count = 10 * MAX_FRAMES_PER_TURN
    most_in_a_turn = seen = 0

    sending = asyncio.ensure_future(peer.send(frame(b"") * count))
    while len(peer.requests) < count:
        await asyncio.sleep(0)
        most_in_a_turn, seen = max(most_in_a_turn, len(peer.requests) - seen), len(peer.requests)
    await sending

    assert most_in_a_turn <= 2 * MAX_FRAMES_PER_TURN


@pytest.mark.parametrize("length", [-1, MAX_FRAME + 1])
async def test_an_invalid_length_closes_the_connection(
    peer: Peer, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await peer.send(struct.pack(">i", length))
        await peer.closed.wait()

    (record,) = caplog.records
    assert "192.0.2.1:7" in record.getMessage()
    assert f"a request announces {length} bytes; socket.request.max.bytes allows" in record.getMessage()


async def test_requests_before_a_bad_one_are_answered(peer: Peer) -> None:
    def answer(body: bytes) -> Parts:
        if body == b"bad":
            raise InvalidRequestError("invalid")
        return [frame(body)]

    peer.answer = answer
    await peer.send(frame(b"good") + frame(b"bad") + frame(b"unread"))

    assert await peer.receive(100) == frame(b"good")
    assert peer.requests == [b"good", b"bad"]


async def test_produce_requests_that_arrive_together_are_handled_together(peer: Peer) -> None:
    bodies = [PRODUCE + b"1", PRODUCE + b"22", b"\0\1 a fetch", PRODUCE, b"", b"\0", PRODUCE + b"3", PRODUCE + b"4"]
    data = b"".join(map(frame, bodies))
    for cut in range(1, 60, 4):
        peer.requests.clear()
        peer.runs.clear()
        await peer.send(data[:cut])
        await peer.turns()
        await peer.send(data[cut:])

        assert await peer.receive(len(data)) == data
        assert peer.requests == bodies
        assert peer.runs[-1] == 2, cut
        assert all(length > 1 for length in peer.runs), cut


async def test_a_run_ends_at_its_limit_or_at_an_invalid_request(peer: Peer) -> None:
    data = frame(PRODUCE) * (MAX_RUN + 3)
    await peer.send(data + struct.pack(">i", MAX_FRAME + 1) + PRODUCE)

    assert await peer.receive(len(data) + 1) == data
    assert peer.runs == [MAX_RUN, 3]
    assert peer.connection.is_closed


async def test_replies_of_a_run_before_its_failure_are_sent(peer: Peer) -> None:
    def fail(_: bytes) -> Parts:
        raise InvalidRequestError("the second is invalid", [frame(b"first")])

    peer.answer = fail
    await peer.send(frame(PRODUCE) * 2)

    assert await peer.receive(100) == frame(b"first")


async def test_a_connection_that_ends_within_a_request_is_logged(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        await peer.send(frame(b"whole")[:6])
        await peer.turns()
        peer.socket.close()
        await peer.closed.wait()

    assert "disconnected in the middle of a request" in caplog.text


async def test_a_large_request_waits_for_memory_and_small_ones_do_not() -> None:
    peer = Peer(memory_limit=1 << 20)
    peer.memory.used = 1 << 20
    large = bytes(600_000)

    await peer.send(frame(b"small"))
    assert await peer.receive(9) == frame(b"small")
    sending = asyncio.ensure_future(peer.send(frame(large)))
    await peer.turns(50)
    assert peer.requests == [b"small"]
    peer.memory.release(1 << 20)
    assert await peer.receive(len(large) + 4) == frame(large)
    await sending

    peer.connection.close(None)
    peer.socket.close()
    assert peer.memory.used == 0


async def test_a_slow_request_is_closed_when_others_wait_for_its_memory(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.send(struct.pack(">i", 1_000_000) + b"never ends")
    await peer.turns()
    now = peer.loop.time()

    peer.connection.check_patience(now + 60)
    assert not peer.closed.is_set(), "no other request waits for memory"
    peer.memory.limit = 0
    assert not peer.memory.reserve(OtherConnection(), 1_000_000)
    peer.connection.check_patience(now + 60)

    await peer.closed.wait()
    assert "while others waited for its memory" in caplog.text
    peer.memory.used = 0


async def test_a_failed_reply_closes_the_connection_with_a_reason(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: bytes) -> Parts:
        raise InvalidRequestError("cannot be answered")

    peer.answer = fail
    await peer.send(frame(b"x"))
    await peer.closed.wait()

    assert "cannot be answered" in caplog.text


async def test_disconnecting_at_once_leaves_no_unawaited_coroutine(peer: Peer) -> None:
    # Python's warning would fail the test.
    began = []

    async def inner() -> Parts:
        began.append(True)
        await asyncio.Event().wait()
        return []

    async def outer(awaited: Awaitable[Parts]) -> Parts:
        return await awaited

    def answer(_: bytes) -> Awaitable[Parts]:
        peer.loop.call_soon(peer.connection.close, None)
        return outer(inner())

    peer.answer = answer
    await peer.send(frame(b"x"))
    await peer.closed.wait()
    await peer.turns()
    assert began == [True]


async def test_an_abandonable_request_ends_when_the_client_hangs_up(peer: Peer) -> None:
    later: asyncio.Future[Parts] = peer.loop.create_future()
    peer.answer = lambda _: later
    peer.connection.client.give_up = lambda: later.set_result([frame(b"nothing yet")])
    # The end of the stream is after the requests sent ahead, so it is not found by reading.
    ahead = frame(b"x" * 1000) * 90
    await peer.send(frame(b"waits") + ahead)
    await peer.turns()
    assert peer.requests == [b"waits"]
    peer.answer = lambda body: [frame(body)]

    peer.socket.shutdown(socket.SHUT_WR)

    expected = frame(b"nothing yet") + ahead
    assert await asyncio.wait_for(peer.receive(len(expected) + 1), 10) == expected
    await peer.closed.wait()


async def test_other_requests_continue_after_the_client_hangs_up(peer: Peer) -> None:
    later: asyncio.Future[Parts] = peer.loop.create_future()
    peer.answer = lambda _: later
    await peer.send(frame(b"join"))
    await peer.turns()
    peer.socket.close()
    await peer.turns()
    assert peer.connection.hung_up_at is not None
    assert not peer.closed.is_set()

    peer.connection.leave()

    await peer.closed.wait()
    await peer.turns()
    assert not later.cancelled()
    later.set_result([])
    await peer.turns()


async def test_a_connection_that_waits_for_its_turn_keeps_watching_its_socket(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[int] = []
    monkeypatch.setattr(peer.loop, "remove_reader", removed.append)
    peer.answer = lambda _: []
    await peer.send(frame(b"") * 2 * MAX_FRAMES_PER_TURN)
    await peer.turns(50)
    assert (len(peer.requests), removed) == (2 * MAX_FRAMES_PER_TURN, [])
    monkeypatch.undo()


async def test_a_connection_with_costly_requests_yields_after_each(peer: Peer) -> None:
    def slow(body: bytes) -> Parts:
        time.sleep(0.002)
        return [frame(body)]

    peer.answer = slow
    most_in_a_turn = seen = 0
    await peer.send(frame(b"x") * 20)
    while len(peer.requests) < 20:
        await asyncio.sleep(0)
        most_in_a_turn, seen = max(most_in_a_turn, len(peer.requests) - seen), len(peer.requests)

    assert most_in_a_turn <= 2
    assert await peer.receive(100) == frame(b"x") * 20


def _zeros(size: int, _: bytes) -> Parts:
    return [bytes(size)]


async def test_over_the_limit_of_unsent_replies_the_connection_with_the_most_is_closed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    unsent = UnsentAnswers(limit=4_000_000)
    peers = [Peer(unsent=unsent) for _ in range(3)]
    with caplog.at_level(logging.WARNING):
        for each, size in zip(peers, (1_200_000, 2_500_000, 1_500_000), strict=True):
            each.answer = partial(_zeros, size)
            await each.send(frame(b"much"))
            await each.turns(20)

    assert [item.connection.is_closed for item in peers] == [False, True, False]
    assert len(caplog.messages) == 1
    assert "the client does not read its replies" in caplog.text
    assert unsent.total < 4_000_000

    assert len(await peers[0].receive(1_200_000)) == 1_200_000
    assert len(await peers[2].receive(1_500_000)) == 1_500_000
    await peers[0].turns()
    assert unsent.total == 0
    for peer in peers:
        peer.connection.close(None)
        peer.socket.close()
        peer.hang_ups.close()


# Produce requests that wait for followers


class Waits:
    """Answers every Produce request when its future in `runs` is done."""

    def __init__(self, peer: Peer) -> None:
        self.runs: list[asyncio.Future[Parts]] = []
        self.peer = peer
        peer.answer = self.answer

    def answer(self, body: bytes) -> Parts | Awaitable[Parts]:
        if not body.startswith(PRODUCE):
            return [frame(body)]
        run: asyncio.Future[Parts] = self.peer.loop.create_future()
        self.runs.append(run)
        return Executed(run)

    async def send(self, *bodies: bytes) -> None:
        for body in bodies:  # one by one, so that they are not combined into one run
            await self.peer.send(frame(body))
            await self.peer.turns()


async def test_runs_that_wait_for_followers_overlap_and_are_answered_in_order(peer: Peer) -> None:
    waits = Waits(peer)
    await waits.send(PRODUCE + b"1", PRODUCE + b"2", PRODUCE + b"3")
    assert len(waits.runs) == 3

    waits.runs[1].set_result([b"two"])
    waits.runs[2].set_result([b"three"])
    await peer.turns()
    with pytest.raises(BlockingIOError):
        peer.socket.recv(1)
    waits.runs[0].set_result([b"one"])
    assert await peer.receive(11) == b"onetwothree"


async def test_other_requests_wait_for_overlapping_runs(peer: Peer) -> None:
    waits = Waits(peer)
    await waits.send(PRODUCE + b"1", PRODUCE + b"2", b"\0\3", PRODUCE + b"3")
    assert peer.requests == [PRODUCE + b"1", PRODUCE + b"2"]
    waits.runs[0].set_result([b"one"])
    await peer.turns()
    assert len(peer.requests) == 2
    waits.runs[1].set_result([b"two"])
    await peer.turns(10)
    assert peer.requests[2:] == [b"\0\3", PRODUCE + b"3"]
    assert await peer.receive(12) == b"onetwo" + frame(b"\0\3")


async def test_an_immediate_reply_waits_for_earlier_runs(peer: Peer) -> None:
    waits = Waits(peer)
    await waits.send(PRODUCE + b"1")
    peer.answer = lambda _: [b"two"]
    await waits.send(PRODUCE + b"2")
    waits.runs[0].set_result([b"one"])
    assert await peer.receive(6) == b"onetwo"


async def test_a_slow_request_after_a_run_is_answered_after_it(peer: Peer) -> None:
    waits = Waits(peer)
    await waits.send(PRODUCE + b"1")
    later: asyncio.Future[Parts] = peer.loop.create_future()
    peer.answer = lambda _: later
    await waits.send(PRODUCE + b"2", PRODUCE + b"3")
    assert len(peer.requests) == 2  # this one has not been appended
    peer.answer = lambda _: [b"three"]
    later.set_result([b"two"])
    await peer.turns()
    waits.runs[0].set_result([b"one"])
    assert await peer.receive(11) == b"onetwothree"


def _answered_by(answer: Awaitable[Parts], _: bytes) -> Awaitable[Parts]:
    return answer


@pytest.mark.parametrize("is_run", [True, False])
async def test_a_promise_is_answered_in_the_call_that_keeps_it(peer: Peer, is_run: bool) -> None:
    promise: Promise[Parts] = Promise()
    peer.answer = lambda _: Executed(promise) if is_run else promise
    await peer.send(frame(PRODUCE))
    await peer.turns()

    promise.set_result([b"one"])

    assert peer.socket.recv(3) == b"one"


async def test_promises_of_several_runs_are_answered_together(peer: Peer) -> None:
    promises = [Promise[Parts]() for _ in range(3)]
    for promise in promises:
        peer.answer = partial(_answered_by, Executed(promise))
        await peer.send(frame(PRODUCE))
        await peer.turns()

    for promise in promises:
        promise.set_result([b"one"])

    with pytest.raises(BlockingIOError):
        peer.socket.recv(1)
    await peer.turns()
    assert peer.socket.recv(20) == b"oneoneone"


async def test_a_promise_that_is_kept_while_requests_are_handled_does_not_handle_others_in_between(peer: Peer) -> None:
    promises = [Promise[Parts]() for _ in range(2)]

    def answer(body: bytes) -> Parts | Awaitable[Parts]:
        number = body[-1]
        if number:
            promises[0].set_result([b"one"])
        return Executed(promises[number])

    peer.answer = answer
    await peer.send(frame(PRODUCE + b"\0"))
    await peer.turns()
    await peer.send(frame(PRODUCE + b"\1"))
    assert await peer.receive(3) == b"one"
    promises[1].set_result([b"two"])
    assert await peer.receive(3) == b"two"
    assert peer.requests == [PRODUCE + b"\0", PRODUCE + b"\1"]


@pytest.mark.parametrize("is_run", [True, False])
async def test_an_answer_to_a_connection_that_closes_meanwhile_is_cancelled(peer: Peer, is_run: bool) -> None:
    failures: list[object] = []
    peer.loop.set_exception_handler(lambda _, context: failures.append(context))
    later: asyncio.Future[Parts] = peer.loop.create_future()

    def answer(_: bytes) -> Awaitable[Parts]:
        peer.connection.close(None)  # as when a reply to an earlier request cannot be sent
        return Executed(later) if is_run else later

    peer.answer = answer
    await peer.send(frame(PRODUCE) + frame(b"\0\1two"))
    await peer.turns()

    assert len(peer.requests) == 1
    assert later.cancelled()
    assert failures == []


async def test_requests_that_wait_for_a_promise_are_handled_in_their_own_turn(peer: Peer) -> None:
    promise: Promise[Parts] = Promise()
    peer.answer = lambda _: promise
    await peer.send(frame(b"\0\1one") + frame(b"\0\1two"))
    await peer.turns()
    peer.answer = lambda _: [b"two"]

    promise.set_result([b"one"])
    assert len(peer.requests) == 1
    assert await peer.receive(6) == b"onetwo"


async def test_a_connection_whose_requests_wait_is_light_again_after_a_short_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ns = 0
    promise: Promise[Parts] = Promise()
    peer = Peer(clock=lambda: now_ns)
    monkeypatch.setattr("headrace.server.loop.turns.thread_time_ns", lambda: now_ns)
    kinds = []

    def answer(body: bytes) -> Promise[Parts]:
        nonlocal now_ns
        now_ns += 1000 * int(body[2:])
        return promise

    peer.answer = answer
    for took_us in (2000, 2000, 1):
        promise = Promise()
        await peer.send(frame(b"\0\1%d" % took_us))
        await peer.turns()
        promise.set_result([b"one"])
        kinds.append(peer.connection._pace.kind())
    peer.connection.close(None)
    peer.socket.close()
    peer.hang_ups.close()
    assert kinds == [HEAVY, HEAVY, LIGHT]


async def test_closing_a_connection_cancels_its_promises(peer: Peer) -> None:
    promises = [Promise[Parts]() for _ in range(2)]
    answers: list[Awaitable[Parts]] = [Executed(promises[0]), promises[1]]
    for promise, answer in zip(promises, answers, strict=True):
        peer.answer = partial(_answered_by, answer)
        await peer.send(frame(PRODUCE))
        await peer.turns()
        assert not promise.done()

    peer.connection.close(None)
    await peer.turns()
    assert all(promise.cancelled() for promise in promises)


async def test_an_idle_socket_is_watched_while_its_request_waits(peer: Peer) -> None:
    changes: list[int] = []
    later: asyncio.Future[Parts] = peer.loop.create_future()
    peer.answer = lambda _: later
    with pytest.MonkeyPatch.context() as patch:
        for name in ("add_reader", "remove_reader"):
            patch.setattr(peer.loop, name, lambda fd, *_: changes.append(fd))
        await peer.send(frame(b"\0\1one"))
        await peer.turns()
        assert len(peer.requests) == 1
        later.set_result([b"one"])
        await peer.turns()
        assert changes == []
    assert await peer.receive(3) == b"one"


async def test_the_number_of_overlapping_runs_is_limited(peer: Peer) -> None:
    waits = Waits(peer)
    await waits.send(*(PRODUCE + b"%d" % number for number in range(MAX_RUNS + 3)))
    assert len(waits.runs) == MAX_RUNS
    waits.runs[0].set_result([b"one"])
    await peer.turns(10)
    assert len(waits.runs) > MAX_RUNS


@pytest.mark.parametrize("invalid", ["length", "request", "later"])
async def test_no_request_after_an_invalid_one_is_handled_while_runs_wait(peer: Peer, invalid: str) -> None:
    waits = Waits(peer)
    await waits.send(PRODUCE + b"1", PRODUCE + b"2")
    error = InvalidRequestError("no", [b"three"])
    later: asyncio.Future[Parts] = peer.loop.create_future()

    def refuse(_: bytes) -> Parts | Awaitable[Parts]:
        if invalid == "later":
            return later
        raise error

    peer.answer = refuse
    await peer.send(struct.pack(">i", -1) if invalid == "length" else frame(PRODUCE + b"3"))
    await peer.turns()
    peer.answer = waits.answer
    await waits.send(PRODUCE + b"4")
    if invalid == "later":
        later.set_exception(error)
        await peer.turns()
    handled = peer.requests.copy()

    waits.runs[0].set_result([b"one"])
    await peer.turns(10)
    await waits.send(PRODUCE + b"5")
    assert not peer.closed.is_set()
    waits.runs[1].set_result([b"two"])

    replies = b"onetwo" if invalid == "length" else b"onetwothree"
    assert await peer.receive(len(replies)) == replies
    assert peer.closed.is_set()
    assert peer.requests == handled


async def test_requests_before_an_invalid_one_are_handled_once_while_runs_wait(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Waits(peer)
    run_lengths: list[int] = []

    def handle_run(_: ClientInfo, frames: Sequence[memoryview]) -> Parts | Awaitable[Parts]:
        run_lengths.append(len(frames))
        return waits.answer(bytes(frames[0]))

    monkeypatch.setattr(peer, "handle_run", handle_run)
    first: asyncio.Future[Parts] = peer.loop.create_future()
    peer.answer = lambda _: first
    await peer.send(frame(b"x") + frame(PRODUCE) * (2 * MAX_RUN) + struct.pack(">i", -1))
    await peer.turns()
    first.set_result([b"x"])  # the others have been kept meanwhile
    await peer.turns()
    assert run_lengths == [MAX_RUN, MAX_RUN]

    waits.runs[0].set_result([b"one"])
    await peer.turns(10)
    assert run_lengths == [MAX_RUN, MAX_RUN]
    assert not peer.closed.is_set()

    waits.runs[1].set_result([b"two"])
    assert await peer.receive(100) == b"xonetwo"
    assert peer.closed.is_set()


async def test_a_run_that_fails_closes_the_connection(peer: Peer) -> None:
    waits = Waits(peer)
    await waits.send(PRODUCE + b"1", PRODUCE + b"2")
    waits.runs[0].set_exception(InvalidRequestError("acks=0 failed"))
    assert await peer.receive(100) == b""
    assert peer.closed.is_set()
    await peer.turns()
    assert waits.runs[1].cancelled()


END_TXN = struct.pack(">hh", 26, 1)
FETCH = struct.pack(">hh", 1, 12)


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Peer, Peer, list[bytes]]]:
    """Two connections of one server, and the requests of both in the order of their turns."""
    loop = asyncio.get_running_loop()
    urgent = UrgentReads(loop)
    # The clock stands still: a connection is not urgent after a long turn, and on a busy machine any turn may be long.
    peers = Peer(urgent=urgent, clock=lambda: 1), Peer(urgent=urgent, clock=lambda: 1)
    served: list[bytes] = []
    for peer in peers:
        peer.requests = served
    yield *peers, served
    for peer in peers:
        peer.connection.close(None)
        peer.socket.close()
        peer.hang_ups.close()
    urgent.close()


async def ask(peer: Peer, request: bytes) -> None:
    await peer.send(frame(request))
    assert await peer.receive(4 + len(request)) == frame(request)


async def test_the_end_of_a_transaction_is_served_before_a_producer_even_if_that_had_to_queue(
    pair: tuple[Peer, Peer, list[bytes]],
) -> None:
    coordinator, producer, served = pair
    for turn in (producer.connection._on_readable, producer.connection.take_turn):
        await ask(coordinator, END_TXN)
        await ask(producer, PRODUCE)
        served.clear()
        coordinator.socket.send(frame(END_TXN))
        producer.socket.send(frame(PRODUCE))
        turn()
        assert served == [END_TXN, PRODUCE]
        for peer in (coordinator, producer):
            assert len(peer.socket.recv(100)) > 0


async def test_the_end_of_a_transaction_does_not_queue(pair: tuple[Peer, Peer, list[bytes]]) -> None:
    coordinator, _, served = pair
    await ask(coordinator, END_TXN)
    served.clear()
    coordinator.turns_queue.spent(1_000_000_000)
    coordinator.socket.send(frame(END_TXN))
    coordinator.connection._on_readable()
    assert served == [END_TXN]


@pytest.mark.parametrize("other", [struct.pack(">hh", 0, 9), FETCH])
async def test_a_connection_with_records_is_not_urgent(pair: tuple[Peer, Peer, list[bytes]], other: bytes) -> None:
    mixed, producer, served = pair
    for request in (END_TXN, other, END_TXN):
        await ask(mixed, request)
    await ask(producer, PRODUCE)
    served.clear()
    mixed.socket.send(frame(END_TXN))
    producer.socket.send(frame(PRODUCE))
    producer.connection._on_readable()
    assert served == [PRODUCE]


async def test_urgent_connections_are_read_by_the_loop_too(pair: tuple[Peer, Peer, list[bytes]]) -> None:
    coordinator, _, _ = pair
    for _ in range(3):
        await ask(coordinator, END_TXN)
    coordinator.socket.close()
    await asyncio.wait_for(coordinator.closed.wait(), 5)
