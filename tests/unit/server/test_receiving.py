"""A connection keeps incomplete requests, whose memory is used again."""

import asyncio
import socket
from collections.abc import Iterator

import pytest

from headrace.server.receiving import SCRATCH_SIZE, Receiver
from headrace.server.request_memory import RequestMemory

SIZE = SCRATCH_SIZE // 2


class Client:
    """Sends `Receiver` bytes; both work in one thread, so that each message fits into the socket's buffer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.socket, self._server = socket.socketpair()
        self._server.setblocking(False)
        self.receiver = Receiver(self._server, loop, RequestMemory(1 << 30), lambda: None)

    def send(self, content: bytes) -> None:
        self.socket.sendall(content)
        self.receiver.receive()

    def send_in_pieces(self, content: bytes) -> bytes:
        """Send a request of which the first bytes come alone. Return what the server has received."""
        self.send(content[:10])
        self.receiver.keep(0, len(content))
        for start in range(10, len(content), 50_000):
            assert self.receiver.is_partial
            self.send(content[start : start + 50_000])
        return self.received

    @property
    def received(self) -> bytes:
        return bytes(self.receiver.view[: self.receiver.end])

    def close(self) -> None:
        self.socket.close()
        self._server.close()


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    loop = asyncio.new_event_loop()
    made = [Client(loop) for _ in range(3)]
    yield made
    for client in made:
        client.close()
    loop.close()


def test_requests_after_each_other_use_the_same_memory(clients: list[Client]) -> None:
    first, second, _ = clients
    assert first.send_in_pieces(b"a" * SIZE) == b"a" * SIZE
    memory = first.receiver.view.obj
    first.receiver.keep(SIZE, 4)

    assert second.send_in_pieces(b"b" * (SIZE - 1000)) == b"b" * (SIZE - 1000)
    assert second.receiver.view.obj is memory


def test_requests_at_the_same_time_do_not_share_memory(clients: list[Client]) -> None:
    first, second, third = clients
    first.send_in_pieces(b"a" * SIZE)
    first.receiver.keep(SIZE, 4)
    for client, letter in ((first, b"a"), (second, b"b"), (third, b"c")):
        client.send_in_pieces(letter * SIZE)

    assert [client.received for client in clients] == [b"a" * SIZE, b"b" * SIZE, b"c" * SIZE]


def test_a_small_request_does_not_hold_large_memory(clients: list[Client]) -> None:
    first, second, _ = clients
    first.send_in_pieces(b"a" * SIZE)
    first.receiver.keep(SIZE, 4)

    second.send_in_pieces(b"b" * 1000)

    held = second.receiver.view.obj
    assert isinstance(held, bytearray)
    assert len(held) <= 2 * 1000


def test_the_next_request_moves_to_larger_memory(clients: list[Client]) -> None:
    client = clients[0]
    client.send_in_pieces(b"a" * SIZE)
    client.receiver.keep(SIZE - 7, SIZE * 2 - 7)

    assert client.received == b"a" * 7
    client.send(b"b" * 9)
    assert client.received == b"a" * 7 + b"b" * 9
