"""A broker's HTTP listener: metrics for Prometheus, and JSON. Read-only.

Imported only if `headrace.http.listener` is set. Minimal on purpose (docs/decisions/061): GET and HEAD, no request
bodies, everything bounded.
"""

import asyncio
import errno
import json
import logging
import resource
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from http import HTTPStatus
from inspect import isawaitable
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector as PrometheusCollector
from prometheus_client.registry import CollectorRegistry

from headrace import __version__
from headrace.config import ConfigError
from headrace.config.listeners import AddressInUseError
from headrace.errors import KafkaError
from headrace.metrics import Collector, Family

log = logging.getLogger(__name__)

Query: TypeAlias = Mapping[str, str]
JsonHandler: TypeAlias = Callable[[Query], "object | Awaitable[object]"]
"""Returns a value for `json.dumps`. Raises HttpError, or a KafkaError, which is sent with its name and message."""

_SETTING: Final = "headrace.http.listener"
MAX_HEAD_BYTES: Final = 8192
MAX_ANSWERS: Final = 64
"""Maximum number of requests in progress. A request counts until the socket has accepted its reply."""
MAX_WAITING: Final = 256
"""Maximum number of connections without a request. With a smaller limit, a burst of connections could evict one whose
request has already arrived."""
_DESCRIPTOR_SHARE: Final = 8
"""Each of the two limits is at most 1/8 of the process's limit on open files."""
REQUEST_TIMEOUT_S: Final = 30.0
"""Time limit for the start of the next request, for its handler, and for sending the reply."""
HEAD_TIMEOUT_S: Final = 10.0
"""Time limit from the first to the last byte of a request."""
_MAX_QUERY_FIELDS: Final = 32
_LINGER_S: Final = 1.0
_LINGER_READS: Final = 64
_JSON: Final = "application/json"


class HttpError(Exception):
    """An error reply; `message` says what is wrong and what to do."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class _Request(NamedTuple):
    method: str
    path: str
    query: Query
    accept: str
    keep_alive: bool


class _Answer(NamedTuple):
    body: bytes
    content_type: str = _JSON
    status: HTTPStatus = HTTPStatus.OK


_Route: TypeAlias = Callable[[_Request], Awaitable[_Answer]]


class HttpServer:
    """Serves GET and HEAD requests."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._routes: dict[str, _Route] = {"/": self._index, "/metrics": self._metrics}
        self._collectors: list[Collector] = []
        self._connections: set[asyncio.Task[None]] = set()
        # In order of arrival: if there are too many, the oldest is evicted.
        self._waiting: dict[asyncio.Task[None], None] = {}
        self._answered: dict[asyncio.Task[None], None] = {}
        self._sending: dict[asyncio.Task[None], None] = {}
        share = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _DESCRIPTOR_SHARE
        self._max_waiting = MAX_WAITING if share < 0 else max(1, min(MAX_WAITING, share))
        self._max_answers = MAX_ANSWERS if share < 0 else max(1, min(MAX_ANSWERS, share))
        self._socket: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """`host:port`, with the actual port after `bind`."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{host}:{self._port}"

    def add_json(self, path: str, handler: JsonHandler) -> None:
        """Answer GET `path` with the result of `handler`, which runs on the event loop.

        The result is encoded in a thread and must not change afterwards.
        """

        async def route(request: _Request) -> _Answer:
            result = handler(request.query)
            if isawaitable(result):
                result = await result
            # Encoding thousands of groups takes long: see `_metrics`.
            return await asyncio.to_thread(_json, result)

        self._routes[path] = route

    def add_metrics(self, collector: Collector) -> None:
        """Add the families of `collector` to /metrics. Several collectors may contribute to one family."""
        self._collectors.append(collector)

    def bind(self) -> None:
        """Bind the address. Raises AddressInUseError, or another ConfigError if the address cannot be bound."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            self._socket = socket.create_server((self._host, self._port), family=family)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                option = f"{_SETTING} (0 for any free one)"
                raise AddressInUseError(_SETTING, self._host, self._port, option) from error
            reason = error.strerror or str(error)
            raise ConfigError(_SETTING, self.address, f"cannot listen on this address: {reason}") from error
        self._port = self._socket.getsockname()[1]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._socket, limit=MAX_HEAD_BYTES)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._server is not None:
            self._server.close()
        elif self._socket is not None:
            self._socket.close()
        for task in tuple(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # Routes

    async def _index(self, _: _Request) -> _Answer:
        return _json({"headrace": __version__, "paths": sorted(self._routes)})

    async def _metrics(self, request: _Request) -> _Answer:
        """Collect and encode the metrics. A collector that fails is logged and skipped."""
        families: list[Family] = []
        for collector in self._collectors:
            try:
                for family in collector():
                    families.append(
                        family if callable(family.samples) else family._replace(samples=list(family.samples))
                    )
                    await asyncio.sleep(0)
            except Exception:
                log.exception("Collecting the metrics of %r failed: this is a bug, please report it", collector)
        # Encoding thousands of partitions takes long. In a thread, it does not delay other requests.
        return await asyncio.to_thread(_exposition, families, request.accept)

    # Connections

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # Otherwise the end of a reply can wait 40 ms for the acknowledgement of its beginning.
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while await self._exchange(reader, writer, task):
                pass
            self._wait(task)
            await _end(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client disconnected or was too slow, or the broker is stopping
        finally:
            self._waiting.pop(task, None)
            self._connections.discard(task)
            writer.transport.abort()

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> bool:
        self._wait(task)
        request, answer = await self._read(reader)
        self._waiting.pop(task, None)
        self._answered[task] = None
        try:
            if len(self._answered) > self._max_answers:
                if self._sending:
                    _evict_oldest(self._sending)
                else:
                    request, answer = (
                        None,
                        _error(
                            HttpError(
                                HTTPStatus.SERVICE_UNAVAILABLE,
                                f"{self._max_answers} requests are in progress: retry later",
                            )
                        ),
                    )
            if request is not None:
                answer = await self._answer(request)
            keep_alive = request is not None and request.keep_alive
            self._sending[task] = None
            with_body = request is None or request.method != "HEAD"
            await _send(writer, answer, keep_alive=keep_alive, with_body=with_body)
            return keep_alive
        finally:
            self._answered.pop(task, None)
            self._sending.pop(task, None)

    def _wait(self, task: asyncio.Task[None]) -> None:
        self._waiting[task] = None
        if len(self._waiting) > self._max_waiting:
            _evict_oldest(self._waiting)

    async def _read(self, reader: asyncio.StreamReader) -> tuple[_Request | None, _Answer]:
        """Read the next request. Return it, or the reply to an invalid one."""
        answer = _Answer(b"")
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                begin = await reader.readexactly(1)
            async with asyncio.timeout(HEAD_TIMEOUT_S):
                # A request that begins with \r is invalid. Do not wait for a separator whose first byte has been read.
                rest = b"" if begin == b"\r" else await reader.readuntil(b"\r\n\r\n")
            return _parse(begin + rest), answer
        except asyncio.LimitOverrunError:
            answer = _error(
                HttpError(
                    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"the request is longer than {MAX_HEAD_BYTES} bytes"
                )
            )
        except HttpError as error:
            answer = _error(error)
        return None, answer

    async def _answer(self, request: _Request) -> _Answer:
        route = self._routes.get(request.path)
        if route is None:
            known = ", ".join(sorted(self._routes))
            return _error(HttpError(HTTPStatus.NOT_FOUND, f"unknown path {request.path}; known paths: {known}"))
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                return await route(request)
        except HttpError as error:
            return _error(error)
        except KafkaError as error:
            failed = {"error": error.code.name.upper(), "message": str(error)}
            return _json(failed, HTTPStatus.SERVICE_UNAVAILABLE if error.code.retriable else HTTPStatus.BAD_REQUEST)
        except TimeoutError:
            failure = f"{request.path} took longer than {REQUEST_TIMEOUT_S:.0f} s"
            return _error(HttpError(HTTPStatus.GATEWAY_TIMEOUT, failure))
        except Exception:
            log.exception("GET %s failed: this is a bug, please report it", request.path)
            return _error(HttpError(HTTPStatus.INTERNAL_SERVER_ERROR, "this is a bug: see the broker's log"))


def _evict_oldest(tasks: dict[asyncio.Task[None], None]) -> None:
    oldest = next(iter(tasks))
    del tasks[oldest]
    oldest.cancel()


class _Families(PrometheusCollector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        metrics: dict[str, Metric] = {}
        for family in self._families:
            metric = metrics.setdefault(family.name, Metric(family.name, family.help, family.kind))
            name = f"{family.name}_total" if family.kind == "counter" else family.name
            for labels, value in family.samples() if callable(family.samples) else family.samples:
                metric.add_sample(name, dict(labels), value)
        return metrics.values()


def _exposition(families: Iterable[Family], accept: str) -> _Answer:
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # it cannot compare the version, for example a quoted one
        encode, content_type = choose_encoder("")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return _Answer(encode(registry), content_type)


def _json(value: object, status: HTTPStatus = HTTPStatus.OK) -> _Answer:
    return _Answer(json.dumps(value, indent=2).encode() + b"\n", _JSON, status)


def _error(error: HttpError) -> _Answer:
    return _json({"error": error.status.phrase, "message": error.message}, error.status)


def _parse(head: bytes) -> _Request:
    """Parse a GET or HEAD request of HTTP/1.x. Raises HttpError for anything else."""
    try:
        start, *lines = head.decode("ascii").rstrip("\r\n").split("\r\n")
        method, target, version = start.split(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(version)
        headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon:
                raise ValueError(line)
            headers[name.strip().lower()] = value.strip()
    except ValueError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the request line or a header is not valid HTTP/1.x") from None
    try:
        parts = urlsplit(target)
        fields = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=_MAX_QUERY_FIELDS, errors="strict")
        path = unquote(parts.path, errors="strict")
    except ValueError:
        problem = f"the URL is malformed, not UTF-8, or has more than {_MAX_QUERY_FIELDS} parameters"
        raise HttpError(HTTPStatus.BAD_REQUEST, problem) from None
    if method not in ("GET", "HEAD"):
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, f"{method} is not supported: use GET or HEAD")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise HttpError(HTTPStatus.BAD_REQUEST, "request bodies are not supported")
    query: dict[str, str] = {}
    for name, value in fields:
        if name in query:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"the parameter '{name}' is given more than once")
        query[name] = value
    connection = headers.get("connection", "" if version == "HTTP/1.1" else "close").lower()
    keep_alive = "close" not in (option.strip() for option in connection.split(","))
    return _Request(method, path, query, headers.get("accept", ""), keep_alive)


async def _send(writer: asyncio.StreamWriter, answer: _Answer, *, keep_alive: bool, with_body: bool = True) -> None:
    lines = [
        f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(answer.body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("Allow: GET, HEAD")
    _check_open(writer)
    writer.write("\r\n".join([*lines, "", ""]).encode() + (answer.body if with_body else b""))
    async with asyncio.timeout(REQUEST_TIMEOUT_S):
        await writer.drain()


def _check_open(writer: asyncio.StreamWriter) -> None:
    """Raise ConnectionResetError if the client has disconnected, instead of uvloop's RuntimeError at the next write."""
    if writer.transport.is_closing():
        raise ConnectionResetError


async def _end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read the remaining input before closing: unread bytes would reset the connection, and the reply would be lost."""
    _check_open(writer)
    writer.write_eof()
    async with asyncio.timeout(_LINGER_S):
        for _ in range(_LINGER_READS):
            if not await reader.read(MAX_HEAD_BYTES):
                break
