"""The HTTP server: answers, refusals, and clients that try to block it."""

import asyncio
import contextlib
import gc
import http.client
import json
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from http import HTTPStatus
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.config import ConfigError
from headrace.errors import ErrorCode, KafkaError
from headrace.metrics import Family, gauge
from headrace.monitoring import http as http_side
from headrace.monitoring.http import MAX_ANSWERS, MAX_HEAD_BYTES, MAX_WAITING, HttpError, HttpServer, Query


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    server = HttpServer("127.0.0.1", 0)
    server.bind()
    await server.start()
    yield server
    await server.close()


def _get(address: str, path: str, method: str, body: bytes | None) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


async def get(
    server: HttpServer, path: str, method: str = "GET", body: bytes | None = None
) -> tuple[int, dict[str, str], bytes]:
    return await asyncio.to_thread(_get, server.address, path, method, body)


async def get_json(server: HttpServer, path: str) -> tuple[int, Any]:
    status, headers, body = await get(server, path)
    assert headers["content-type"] == "application/json"
    return status, json.loads(body)


async def raw(server: HttpServer, sent: bytes) -> bytes:
    """Send bytes and return everything received until the server closes the connection."""
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(sent)
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def test_a_long_answer_is_encoded_outside_the_event_loop(server: HttpServer) -> None:
    writers: list[threading.Thread] = []

    class Answer(dict[str, str]):
        def items(self) -> Any:
            writers.append(threading.current_thread())
            return super().items()

    server.add_json("/long", lambda _: Answer(a="b"))
    assert await get_json(server, "/long") == (200, {"a": "b"})
    assert threading.current_thread() not in writers
    assert writers


async def test_a_route_gets_the_fields_of_the_query(server: HttpServer) -> None:
    server.add_json("/echo", dict)
    assert await get_json(server, "/echo?group=a%20b&empty=") == (200, {"group": "a b", "empty": ""})


async def test_errors_are_json_and_say_what_to_do(server: HttpServer) -> None:
    def missing(_: Query) -> object:
        raise HttpError(HTTPStatus.NOT_FOUND, "no such group: list groups at /groups")

    def unready(_: Query) -> object:
        raise KafkaError(ErrorCode.coordinator_load_in_progress, "wait")

    def broken(_: Query) -> object:
        raise RuntimeError

    server.add_json("/missing", missing)
    server.add_json("/unready", unready)
    server.add_json("/broken", broken)
    assert await get_json(server, "/missing") == (
        404,
        {"error": "Not Found", "message": "no such group: list groups at /groups"},
    )
    assert await get_json(server, "/unready") == (503, {"error": "COORDINATOR_LOAD_IN_PROGRESS", "message": "wait"})
    assert (await get_json(server, "/broken"))[0] == 500
    assert (await get_json(server, "/other"))[0] == 404
    assert (await get_json(server, "/missing?a=1&a=2"))[0] == 400


async def test_only_get_and_head_are_allowed(server: HttpServer) -> None:
    status, headers, _ = await get(server, "/metrics", "POST", b"a=b")
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    status, headers, body = await get(server, "/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


@pytest.mark.parametrize("how", [b"close", b"TE, Close"])
async def test_a_connection_serves_several_requests_until_connection_close(server: HttpServer, how: bytes) -> None:
    answer = await raw(server, b"GET / HTTP/1.1\r\n\r\n" * 2 + b"GET / HTTP/1.1\r\nConnection: %b\r\n\r\n" % how)
    assert answer.count(b"HTTP/1.1 200 OK") == 3


async def test_an_invalid_request_is_refused_and_ends_the_connection(server: HttpServer) -> None:
    for sent in (
        b"",
        b"GET /",
        b"GET / HTTP/2",
        b"\xff\xfe",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET /?%ff HTTP/1.1",
        b"GET http://[ HTTP/1.1",
        b"GET / HTTP/1.1\r\nContent-Length: 5",
        b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"GET /?" + b"&".join(b"a%d" % number for number in range(99)) + b" HTTP/1.1",
    ):
        assert (await raw(server, sent + b"\r\n\r\n")).startswith(b"HTTP/1.1 400 "), sent


async def test_an_endless_request_is_refused(server: HttpServer) -> None:
    assert (await raw(server, b"GET / HTTP/1.1\r\nX: " + b"x" * 2 * MAX_HEAD_BYTES)).startswith(b"HTTP/1.1 431 ")


async def test_an_idle_connection_is_closed(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_side, "REQUEST_TIMEOUT_S", 0.01)
    assert await raw(server, b"") == b""


async def test_a_slow_route_times_out(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: Query) -> object:
        await asyncio.Event().wait()
        return None

    server.add_json("/never", never)
    monkeypatch.setattr(http_side, "REQUEST_TIMEOUT_S", 0.05)
    assert (await raw(server, b"GET /never HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 504 ")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  no event exists for the server's view of its connections
            await asyncio.sleep(0.01)


HALF = b"GET /metrics HTTP/1.1\r\nHost: x"


async def connected(server: HttpServer, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(sent)
    return reader, writer


async def test_incomplete_requests_do_not_block_others(server: HttpServer) -> None:
    crowd = []
    for count in range(500):
        crowd.append(await connected(server, HALF))
        if count % 50 == 0:
            assert (await get(server, "/metrics"))[0] == 200
    assert (await get(server, "/metrics"))[0] == 200
    assert len(server._connections) <= MAX_WAITING + 1
    reader, _ = crowd[0]
    assert await reader.read() == b""  # the oldest were closed
    for _, writer in crowd:
        await closed(writer)


async def test_a_burst_of_connections_does_not_close_earlier_ones(server: HttpServer) -> None:
    honest = [connected(server, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")]
    crowd = await asyncio.gather(*honest, *(connected(server, HALF) for _ in range(90)))
    async with asyncio.timeout(30):
        assert (await crowd[0][0].read()).startswith(b"HTTP/1.1 200 ")
    for _, writer in crowd:
        await closed(writer)


async def test_an_incomplete_request_times_out(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_side, "HEAD_TIMEOUT_S", 0.05)
    reader, writer = await connected(server, HALF)
    async with asyncio.timeout(30):
        assert await reader.read() == b""
    await closed(writer)


@pytest.mark.slow
async def test_clients_that_read_no_answers_do_not_block_others(server: HttpServer) -> None:
    server.add_json("/large", lambda _: "x" * 10_000_000)
    crowd = [await connected(server, b"GET /large HTTP/1.1\r\n\r\n") for _ in range(MAX_ANSWERS + 10)]
    await until(lambda: len(server._sending) == MAX_ANSWERS)
    assert (await get(server, "/metrics"))[0] == 200
    assert len(server._answered) <= MAX_ANSWERS
    for _, writer in crowd:
        await closed(writer)


async def test_the_number_of_answers_is_bounded(server: HttpServer) -> None:
    go_on = asyncio.Event()

    async def slow(_: Query) -> object:
        return await go_on.wait()

    server.add_json("/slow", slow)
    crowd = [await connected(server, b"GET /slow HTTP/1.1\r\n\r\n") for _ in range(MAX_ANSWERS)]
    await until(lambda: len(server._answered) == MAX_ANSWERS)
    assert (await raw(server, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
    go_on.set()
    for reader, writer in crowd:
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        await closed(writer)


async def test_metrics_are_in_the_format_of_prometheus(server: HttpServer) -> None:
    def broken() -> Iterable[Family]:
        raise RuntimeError

    server.add_metrics(lambda: [Family("size", "Bytes.", [({"topic": 'a"b\\'}, 1.5)]), gauge("up", "Up.", 1)])
    server.add_metrics(broken)
    server.add_metrics(
        lambda: [Family("size", "Bytes.", [({"topic": "c"}, 2)]), Family("in", "In.", [({}, 7)], "counter")]
    )
    status, headers, body = await get(server, "/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain; version=")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert [(sample.labels, sample.value) for sample in families["size"].samples] == [
        ({"topic": 'a"b\\'}, 1.5),
        ({"topic": "c"}, 2.0),
    ]
    assert (families["in"].type, families["in"].samples[0].name) == ("counter", "in_total")


async def test_an_address_in_use_is_named(server: HttpServer) -> None:
    host, _, port = server.address.rpartition(":")
    with pytest.raises(ConfigError, match=rf"^port {port} is in use on {host}: .* headrace\.http\.listener"):
        HttpServer(host, int(port)).bind()


async def test_closing_ends_idle_connections(server: HttpServer) -> None:
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await reader.readuntil(b"}\n")
    await server.close()
    with contextlib.suppress(ConnectionResetError):
        assert await reader.read() == b""
    await closed(writer)


@pytest.mark.parametrize("loop_of", ["uvloop", "asyncio"])
def test_a_client_that_disconnects_before_its_answer_is_not_logged(
    loop_of: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang_up() -> None:
        server = HttpServer("127.0.0.1", 0)
        server.bind()
        asked, may_answer = asyncio.Event(), asyncio.Event()
        exchange = server._exchange
        transports: set[asyncio.BaseTransport] = set()

        async def noted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: Any) -> bool:
            transports.add(writer.transport)
            return await exchange(reader, writer, task)

        monkeypatch.setattr(server, "_exchange", noted)

        async def slow(_: Query) -> object:
            asked.set()
            await may_answer.wait()
            return "x" * 3_000_000

        server.add_json("/slow", slow)
        await server.start()
        host, _, port = server.address.rpartition(":")
        client = socket.create_connection((host, int(port)))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(b"GET /slow HTTP/1.1\r\nConnection: close\r\n\r\n")
        await asyncio.wait_for(asked.wait(), 30)
        client.close()
        (transport,) = transports
        async with asyncio.timeout(30):
            while not transport.is_closing():  # noqa: ASYNC110  transports have no event for it
                await asyncio.sleep(0.001)
        may_answer.set()
        async with asyncio.timeout(30):
            await asyncio.gather(*server._connections, return_exceptions=True)
        await server.close()

    factory = pytest.importorskip("uvloop").Loop if loop_of == "uvloop" else asyncio.SelectorEventLoop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(asyncio.wait_for(hang_up(), 100))
    gc.collect()  # an unretrieved exception is logged when its task is collected
    # Other brokers that still run in this process may log unrelated messages.
    loggers = ("asyncio", "headrace.monitoring.http")
    assert [record.getMessage() for record in caplog.records if record.name in loggers] == []


async def test_answers_are_sent_without_delay(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    send = http_side._send

    async def inspect(writer: asyncio.StreamWriter, answer: Any, *, keep_alive: bool, with_body: bool) -> None:
        connection = writer.get_extra_info("socket")
        seen.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        await send(writer, answer, keep_alive=keep_alive, with_body=with_body)

    monkeypatch.setattr(http_side, "_send", inspect)
    await get(server, "/")
    assert all(seen)
    assert seen
