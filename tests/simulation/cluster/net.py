"""A network between processes with delays, broken connections, and cuts between hosts in one direction.

As with TCP, bytes arrive in order or the connection breaks. A cut is not noticed: messages wait until it is over.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, NamedTuple

from headrace.server.context import ClientInfo, Dispatch
from headrace.server.frames import Parts
from headrace.server.runs import Executed
from headrace.storage.files.log_file import FileSlice
from tests.simulation.cluster.loop import Process, ProcessLoop, current_process

Address = tuple[str, int]
INSTANT_S: Final = 1e-9
"""Keeps events in order: timers of the same time have none."""
_SIZE_BYTES: Final = 4


class Listener(NamedTuple):
    process: Process
    accept: Callable[["End"], None]
    """Begins to serve a connection."""


class Network:
    """All connections. `break_rate` is the probability that a message breaks its connection."""

    def __init__(self, loop: ProcessLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.break_rate = 0.0
        self.slowest_s = 0.002
        self.slow_reads = 0.02
        self.cuts: set[tuple[str, str]] = set()
        """Pairs of hosts: the first cannot send to the second."""
        self._healed = asyncio.Event()
        self._listeners: dict[Address, Listener] = {}
        self._open: list[End] = []
        loop.connect = self.connect

    def listen(self, address: Address, process: Process, accept: Callable[["End"], None]) -> None:
        self._listeners[address] = Listener(process, accept)

    def serve(self, address: Address, process: Process, dispatch: Dispatch, received: Callable[[bytes], None]) -> None:
        """Answer Kafka's requests; `received` gets every frame before it is handled."""

        def accept(end: End) -> None:
            Served(end, dispatch, received)

        self.listen(address, process, accept)

    def without_client(self, process: Process, dispatch: Dispatch) -> "Served":
        """Return the server's end of a connection whose answers go nowhere."""
        end = End(self, process)
        end.send = _ignore  # type: ignore[method-assign]
        return Served(end, dispatch)

    async def connect(self, factory: Callable[[], Any], address: Address) -> tuple[Any, Any]:
        """Return transport and protocol, as `create_connection` does."""
        near = await self.dial(address)
        protocol = factory()
        near.receive, near.lost = _receiver(protocol), protocol.connection_lost
        protocol.connection_made(near)
        return near, protocol

    async def dial(self, address: Address) -> "End":
        """Return this process's end of a new connection. Raises ConnectionRefusedError."""
        process = current_process()
        assert process is not None
        while self._is_cut(process.host, address[0]):
            await self._healed.wait()
        await asyncio.sleep(self.delay())
        listener = self._listeners.get(address)
        if listener is None or not listener.process.is_alive:
            raise ConnectionRefusedError(f"nothing listens on {address}")
        near, far = End(self, process), End(self, listener.process)
        near.peer, far.peer = far, near
        far.is_accepted = True
        listener.accept(far)
        self._open += (near, far)
        return near

    def _is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self.cuts or (other, one) in self.cuts

    def delay(self) -> float:
        return self.random.uniform(0.0001, self.slowest_s)

    def delay_of_file(self) -> float:
        """Return the time until a region of a file is read: rarely long, for a slow receiver."""
        return self.random.uniform(0.0, 0.5) if self.random.random() < self.slow_reads else 0.0

    def heal(self, cuts: set[tuple[str, str]] | None = None) -> None:
        """End these cuts; by default, all."""
        self.cuts -= self.cuts if cuts is None else cuts
        self._healed.set()
        self._healed = asyncio.Event()
        for end in tuple(self._open):
            end.flush()

    def stop_serving(self, process: Process) -> None:
        """Refuse new connections to a process, and break those that it has accepted."""
        self._listeners = {address: known for address, known in self._listeners.items() if known.process is not process}
        for end in tuple(self._open):
            if end.process is process and end.is_accepted:
                end.abort()

    def died(self, process: Process) -> None:
        """Break the connections of a process, which its peers notice unless they are cut from it."""
        for end in tuple(self._open):
            if end.process is process:
                end.abort()

    def closed(self, end: "End") -> None:
        if end in self._open:
            self._open.remove(end)


class End(asyncio.Transport):
    """One end of a connection."""

    peer: "End"
    receive: Callable[[Any], None]
    lost: Callable[[Exception | None], None]

    def __init__(self, network: Network, process: Process) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.is_accepted = False
        self._is_closed = False
        self._unsent: deque[Any] = deque()
        """Messages to the peer that wait for the end of a cut; None for the end of the connection."""
        self._is_broken = False
        """A message is lost: nothing is sent until the connection ends."""
        self._last_arrival = 0.0

    def write(self, data: Any) -> None:
        self.send(bytes(data))

    def send(self, message: object) -> None:
        if not self._is_closed and not self._is_broken:
            self._unsent.append(message)
            self.flush()

    def flush(self) -> None:
        network = self.network
        route = (self.process.host, self.peer.process.host)
        while self._unsent and route not in network.cuts:
            data = self._unsent.popleft()
            self._last_arrival = max(self._last_arrival + INSTANT_S, network.loop.now + network.delay())
            if data is not None and network.random.random() < network.break_rate:
                self._is_broken = True
                self._unsent.clear()
                self._call(self._last_arrival, self, self.abort)
                return
            arrival = self.peer._arrived if data is not None else self.peer._ended
            self._call(self._last_arrival, self.peer, arrival, *(() if data is None else (data,)))

    def _call(self, when: float, end: "End", callback: Callable[..., None], *arguments: Any) -> None:
        self.network.loop.call_at(when, callback, *arguments, context=end.process.context)

    def _arrived(self, data: object) -> None:
        if not self._is_closed:
            self.receive(data)

    def _ended(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.network.closed(self)
            self.lost(None)

    def is_closing(self) -> bool:
        return self._is_closed

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.network.closed(self)
            self._unsent.append(None)
            self.flush()
            self._call(self.network.loop.now, self, self.lost, None)

    close = abort


def _ignore(message: object) -> None:
    """Drop the message."""


def _receiver(protocol: Any) -> Callable[[bytes], None]:
    """Return a function that passes bytes to a BufferedProtocol."""

    def receive(data: bytes) -> None:
        while data:
            buffer = protocol.get_buffer(-1)
            count = min(len(buffer), len(data))
            buffer[:count] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]

    return receive


class Served:
    """The server's end: handles frames, and sends replies in order."""

    def __init__(self, end: End, dispatch: Dispatch, received: Callable[[bytes], None] = lambda _: None) -> None:
        self._end = end
        self._dispatch = dispatch
        self._note = received
        end.receive, end.lost = self.receive, self.lost
        self._received = bytearray()
        self._frames: deque[bytes] = deque()
        self._is_busy = False
        self._client = ClientInfo(listener="PLAINTEXT", host="192.0.2.9", port=7, local_address=("192.0.2.1", 9092))

    def receive(self, data: bytes) -> None:
        received = self._received
        received += data
        while len(received) >= _SIZE_BYTES:
            end = _SIZE_BYTES + int.from_bytes(received[:_SIZE_BYTES], "big")
            if len(received) < end:
                break
            self._frames.append(bytes(received[_SIZE_BYTES:end]))
            del received[:end]
        if not self._is_busy:
            self._serve()

    def lost(self, _: Exception | None) -> None:
        self._client.has_hung_up = True
        if self._client.give_up is not None:
            self._client.give_up()

    def _serve(self) -> None:
        while self._frames:
            frame = self._frames.popleft()
            self._note(frame)
            answer = self._dispatch.handle(self._client, memoryview(frame))
            if not isinstance(answer, list) or any(isinstance(part, FileSlice) for part in answer):
                self._is_busy = True
                done = asyncio.ensure_future(self._answer(answer))
                done.add_done_callback(self._answered)
                return
            self._end.write(b"".join(map(bytes, answer)))  # type: ignore[arg-type]

    async def _answer(self, answer: Parts | Awaitable[Parts]) -> None:
        await self._send(answer if isinstance(answer, list) else await _awaited(answer))

    def _answered(self, done: "asyncio.Future[None]") -> None:
        done.result()
        self._is_busy = False
        self._serve()

    async def _send(self, parts: Parts) -> None:
        """Send the reply. Regions of files are read while the connection takes them, as `sendfile` does."""
        sent = []
        for part in parts:
            if isinstance(part, FileSlice):
                await asyncio.sleep(self._end.network.delay_of_file())
                content = part.read()
                if len(content) < part.size:
                    self._end.abort()  # a segment was truncated while it was being sent
                    return
                sent.append(content)
            else:
                sent.append(bytes(part))
        self._end.write(b"".join(sent))


async def _awaited(answer: Awaitable[Parts]) -> Parts:
    return await (answer.reply if isinstance(answer, Executed) else answer)
