"""A port that is not a Kafka broker is recognised long before librdkafka would give up."""

import http.server
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headrace.cli import greeting
from headrace.testing import Broker


@contextmanager
def _port(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a server that handles connections with `serve` and keeps them open until the end."""
    connections: list[socket.socket] = []

    def accept(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            serve(connection)

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=accept, args=(listener,))
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
        for connection in connections:
            connection.close()


def _answers(data: bytes) -> Callable[[socket.socket], None]:
    def serve(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(data)

    return serve


def _problem(port: int) -> str | None:
    return greeting.why_not_kafka("127.0.0.1", port, 3.0)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "speaks SSH"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "speaks HTTP"),
        (b"\x15\x03\x01\x00\x02\x02\x46\x00", "expects TLS"),
        (b"-ERR unknown command\r\n", "speaks Redis's protocol"),
        (b"\x4a\x00\x00\x00\x0a8.0.36\x00", "speaks MySQL's protocol"),
        (b"220 mail ESMTP\r\n", "it replied '220 mail'"),
        (b"\x00\x01\x02\x03\x04\x05\x06\x07", "it replied '0001020304050607'"),
    ],
)
def test_a_foreign_protocol_is_named(answer: bytes, complaint: str) -> None:
    with _port(_answers(answer)) as port:
        assert complaint in (_problem(port) or "")


def test_a_server_that_closes_the_connection_is_not_kafka() -> None:
    with _port(lambda connection: connection.close()) as port:
        assert "closes the connection" in (_problem(port) or "")


def test_a_web_server_that_waits_for_the_end_of_a_line_is_recognised() -> None:
    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        begin = time.monotonic()
        assert _problem(server.server_address[1]) == "speaks HTTP, not Kafka"
        # the timeout of 5 s, plus a tenth of a second on an idle machine; librdkafka would try for 30 s
        assert time.monotonic() - begin < 20
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_silent_server_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(greeting, "_TIMEOUT_S", 0.3)
    with _port(lambda connection: None) as port:
        assert "did not reply" in (_problem(port) or "")


def test_a_slow_broker_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greeting, "_PATIENCE_S", 0.05)

    def slow(connection: socket.socket) -> None:
        request = connection.recv(1024)
        if request.startswith(b"HEAD"):
            return
        time.sleep(0.3)
        connection.sendall(b"\x00\x00\x00\x0a" + request[8:12] + b"\x00\x23\x00\x00\x00\x00")

    with _port(lambda connection: threading.Thread(target=slow, args=(connection,)).start()) as port:
        assert _problem(port) is None


def test_a_broker_answers() -> None:
    with Broker() as broker:
        assert _problem(broker.port) is None


def test_a_port_without_a_listener_raises() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        _problem(port)
