"""Decodes a request frame, calls the handler of its API, and encodes the reply.

All replies pass through here, so this is the place to authorize, measure and throttle them. The offered APIs are
exactly those in the table of handlers, which ApiVersions returns.
"""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, Final, TypeAlias, TypeVar

from headrace.errors import ErrorCode, KafkaError
from headrace.promise import Promise
from headrace.server.context import ClientInfo, Handler, RawReply, Reply, RequestContext
from headrace.server.decoding import (
    api_name,
    count_entries,
    decode,
    decode_in_steps,
    finish_at_once,
    strip_unknown_tags,
)
from headrace.server.error_replies import error_reply
from headrace.server.frames import MAX_OTHER_FRAME, InvalidRequestError, Parts, check_size, skip_tags
from headrace.server.large_answers import encode_in_steps, is_large
from headrace.server.large_requests import MANY_BATCHES, MANY_ENTRIES, LargeRequests, is_large_frame
from headrace.server.runs import Executed
from headrace.slices import finish, run_slice
from headrace.storage.files.log_file import FileSlice
from headrace.wire.apis import ApiKey, Schema, VersionRange, schema, versions
from headrace.wire.encoder import Fields
from headrace.wire.fetched import FOLLOWER_FETCH_VERSIONS, parse_follower_fetch
from headrace.wire.strict_fields import may_hold_long_string

log = logging.getLogger(__name__)

T = TypeVar("T")

_HEADER = struct.Struct(">hhih")
_SIZE_CORRELATION = struct.Struct(">ii")
_SIZE_FIELD: Final = 4
_CORRELATION_ID_FIELD: Final = 4
_API_VERSIONS: Final = ApiKey.API_VERSIONS.value
_PRODUCE: Final = ApiKey.PRODUCE.value
_FETCH: Final = ApiKey.FETCH.value
_ADVICE: Final = dict.fromkeys(
    (ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA),
    ": the controller's inter.broker.protocol.version must be 3.4 or later; raise it on the Kafka brokers",
)
_ADVERTISED_FROM: Final = {ApiKey.PRODUCE.value: 0}
"""Lowest versions that ApiVersions returns although they are not served, as in Kafka: without Produce 0, older
librdkafka sends everything uncompressed (KAFKA-18659)."""


Replies: TypeAlias = list[RawReply | InvalidRequestError]
RunHandler: TypeAlias = Callable[[Sequence[tuple[RequestContext, Any]]], Replies | Awaitable[Replies]]
"""Handles several requests and returns the replies in order; an InvalidRequestError closes the connection."""
ManyHandler: TypeAlias = Callable[[Sequence[tuple[RequestContext, Any]]], Awaitable[Replies]]


class Dispatcher:
    """Passes every request to the handler of its API."""

    def __init__(self) -> None:
        self.features: Callable[[], Fields] = dict
        """Returns the feature fields of the ApiVersions reply."""
        self._handlers: dict[int, Handler] = {_API_VERSIONS: self._api_versions}
        self._ranges: dict[int, VersionRange] = {_API_VERSIONS: _range(_API_VERSIONS)}
        self._produce_run: RunHandler | None = None
        self._produce_many: ManyHandler | None = None
        self._large_requests = LargeRequests()
        self._long_work = asyncio.Lock()
        """Held by the long request that is running; short requests run between its slices."""
        self._long_fetches = asyncio.Lock()
        """Like `_long_work`, for fetches: consumers of many partitions do not wait for other long requests."""

    def add_routes(self, routes: Mapping[Any, Handler]) -> None:
        """Offer the APIs of `routes` in all versions of their schemas."""
        for api_key, handler in routes.items():
            self._handlers[int(api_key)] = handler
            self._ranges[int(api_key)] = _range(int(api_key))

    def add_produce(self, handler: Handler, run_handler: RunHandler, many_handler: ManyHandler | None = None) -> None:
        """Offer Produce. `handler` takes one request, `run_handler` takes consecutive requests of a client, and
        `many_handler` takes one or more requests with more than `MANY_BATCHES` topics and batches in total.
        """
        self.add_routes({ApiKey.PRODUCE: handler})
        self._produce_run = run_handler
        self._produce_many = many_handler

    @property
    def offered(self) -> Mapping[int, VersionRange]:
        return self._ranges

    def handle(self, client: ClientInfo, frame: memoryview) -> Parts | Awaitable[Parts]:
        """Return the reply to one request frame (without its length).

        Raises InvalidRequestError if it cannot be answered: the connection must be closed.
        """
        context, version_known, position = self._read_header(client, frame)
        if not version_known:
            return self._unsupported_api_versions(context)
        api_schema = schema(context.api_key, context.api_version)
        if context.api_key == _FETCH and context.api_version in FOLLOWER_FETCH_VERSIONS:
            request = parse_follower_fetch(frame, position)
            if request is not None:
                return self._answer(context, api_schema, request)
        if is_large_frame(context.api_key, len(frame)):
            # A copy, because other connections receive into the same memory.
            return self._handle_large(context, api_schema, memoryview(bytes(frame)), position)
        entries = count_entries(context, api_schema, frame, position)
        if entries > MANY_BATCHES:
            if context.api_key == _PRODUCE and self._produce_many is not None:
                requests = [(context, decode(context, api_schema, frame, position))]
                return self._run_later(requests, [api_schema], self._produce_many(requests), None)
            if entries > MANY_ENTRIES:
                return self._handle_large(context, api_schema, memoryview(bytes(frame)), position)
        if context.api_key != _PRODUCE and may_hold_long_string(frame):
            content = finish_at_once(strip_unknown_tags(context, api_schema, frame, position))
            return self._answer(context, api_schema, decode(context, api_schema, content, 0))
        return self._answer(context, api_schema, decode(context, api_schema, frame, position))

    def _answer(self, context: RequestContext, api_schema: Schema, request: Any) -> Parts | Awaitable[Parts]:
        try:
            reply: Any = self._handlers[context.api_key](context, request)
            if isinstance(reply, GeneratorType):
                done = run_slice(reply)
                if done is None:
                    kept = None if context.api_key == _FETCH else request
                    return self._answer_later(context, api_schema, kept, self._in_turn(context, reply))
                reply = done.result
        except Exception as error:  # noqa: BLE001  a bug in one handler must not end the broker
            reply = self._failed(context, request, error)
        if type(reply) is dict or type(reply) is RawReply:
            return self._encode(context, api_schema, reply)
        if isinstance(reply, Promise | Executed):
            return reply.then(partial(self._answer_done, context, api_schema))
        if isinstance(reply, Awaitable):
            # A Fetch may wait for a long time: free its request, which error replies do not need.
            return self._answer_later(context, api_schema, None if context.api_key == _FETCH else request, reply)
        return self._encode(context, api_schema, reply)

    async def _handle_large(
        self, context: RequestContext, api_schema: Schema, frame: memoryview, position: int
    ) -> Parts:
        """Decode and handle one large request at a time. While a Fetch waits, it keeps neither lock nor request."""
        with self._large_requests.admitted(context, len(frame)):
            async with self._large_requests.turn(context):
                async with self._turn_of(context):
                    reader = api_schema.read_in_steps
                    if reader is None:
                        count_entries(context, api_schema, frame, position)
                        await asyncio.sleep(0)
                    content = await finish(strip_unknown_tags(context, api_schema, frame, position))
                    await asyncio.sleep(0)
                    if reader is None:
                        request = decode(context, api_schema, content, 0)
                    else:
                        request = await finish(decode_in_steps(context, reader, content))
                    del frame, content
                    if context.api_key == _FETCH:
                        reply = await self._run_handler(context, request)
                        del request
                if context.api_key != _FETCH:
                    await asyncio.sleep(0)
                    answer = self._answer(context, api_schema, request)
                    return answer if isinstance(answer, list) else await answer
        return await self._answer_later(context, api_schema, None, reply)

    async def _run_handler(self, context: RequestContext, request: Any) -> Awaitable[Reply]:
        """Run all steps of the handler. The caller awaits the returned reply after it releases the lock."""
        reply: Any
        try:
            reply = self._handlers[context.api_key](context, request)
            if isinstance(reply, GeneratorType):
                reply = await finish(reply)
        except Exception as error:  # noqa: BLE001  a bug in one handler must not end the broker
            reply = self._failed(context, request, error)
        return reply if isinstance(reply, Awaitable) else _ready(reply)

    def _turn_of(self, context: RequestContext) -> asyncio.Lock:
        return self._long_fetches if context.api_key == _FETCH else self._long_work

    async def _in_turn(self, context: RequestContext, steps: Generator[None, None, Any]) -> Any:
        try:
            async with self._turn_of(context):
                result = await finish(steps)
        finally:
            steps.close()
        return await result if not isinstance(result, RawReply) and isinstance(result, Awaitable) else result

    def _encode(self, context: RequestContext, api_schema: Schema, reply: Reply) -> Parts | Awaitable[Parts]:
        if isinstance(reply, RawReply) or not is_large(reply):
            return _encode(context, api_schema, reply)
        steps = encode_in_steps(context, api_schema, reply)
        done = run_slice(steps)
        return self._in_turn(context, steps) if done is None else done.result

    def handle_run(self, client: ClientInfo, frames: Sequence[memoryview]) -> Parts | Awaitable[Parts]:
        """Return the replies to consecutive Produce frames of a client, in order.

        Raises InvalidRequestError, with the replies to earlier requests, if one cannot be answered.
        """
        requests: list[tuple[RequestContext, Any]] = []
        schemas: list[Schema] = []
        invalid: InvalidRequestError | None = None
        entries = 0
        for frame in frames:
            try:
                context, api_schema, request, count = self._read(client, frame)
            except InvalidRequestError as error:
                invalid = error
                break
            entries += count
            if entries > MANY_ENTRIES:
                # Copies, because other connections receive into the same memory.
                return self._one_by_one(client, [memoryview(bytes(frame)) for frame in frames])
            requests.append((context, request))
            schemas.append(api_schema)
        handler = self._produce_many if entries > MANY_BATCHES else self._produce_run
        try:
            replies: Any = handler(requests) if handler is not None and requests else []
        except Exception as error:  # noqa: BLE001  a bug in the handler must not end the broker
            replies = [self._unexpected(context, request, error) for context, request in requests]
        if isinstance(replies, list):
            return _encode_run(requests, schemas, replies, invalid)
        if type(replies) is Executed:
            # Keep no reference to the requests, whose records would stay in memory.
            return replies.then(partial(_run_done, [context for context, _ in requests], schemas, invalid))
        return self._run_later(requests, schemas, replies, invalid)

    async def _one_by_one(self, client: ClientInfo, frames: Sequence[memoryview]) -> Parts:
        parts: Parts = []
        for frame in frames:
            try:
                answer = self.handle(client, frame)
                parts += answer if isinstance(answer, list) else await answer
            except InvalidRequestError as error:
                raise InvalidRequestError(str(error), parts + error.answers) from error
            await asyncio.sleep(0)
        return parts

    async def _run_later(
        self,
        requests: list[tuple[RequestContext, Any]],
        schemas: list[Schema],
        replies: Awaitable[Sequence[Reply | InvalidRequestError]],
        invalid: InvalidRequestError | None,
    ) -> Parts:
        ready: Sequence[Reply | InvalidRequestError]
        try:
            ready = await replies
        except Exception as error:  # noqa: BLE001  a bug in the handler must not end the broker
            ready = [self._unexpected(context, request, error) for context, request in requests]
        return _encode_run(requests, schemas, ready, invalid)

    def _read(self, client: ClientInfo, frame: memoryview) -> tuple[RequestContext, Schema, Any, int]:
        """Decode a request. Return context, schema, body and number of entries. Raises InvalidRequestError."""
        context, _, position = self._read_header(client, frame)
        api_schema = schema(context.api_key, context.api_version)
        entries = count_entries(context, api_schema, frame, position)
        return context, api_schema, decode(context, api_schema, frame, position), entries

    async def _answer_later(
        self, context: RequestContext, api_schema: Schema, request: Any, answer: Awaitable[Reply]
    ) -> Parts:
        try:
            reply = await answer
        except Exception as error:  # noqa: BLE001  a bug in one handler must not end the broker
            reply = self._failed(context, request, error)
        encoded = self._encode(context, api_schema, reply)
        return encoded if isinstance(encoded, list) else await encoded

    def _answer_done(self, context: RequestContext, api_schema: Schema, done: Promise[Reply]) -> Parts:
        """Like `_answer_later`, for replies of Produce and Fetch, which have few fields or are encoded already."""
        try:
            reply = done.result()
        except Exception as error:  # noqa: BLE001  a bug in one handler must not end the broker
            reply = self._failed(context, None, error)
        return _encode(context, api_schema, reply)

    def _failed(self, context: RequestContext, request: Any, error: Exception) -> Reply:
        """Return the reply to a request whose handler raised `error`. Re-raises InvalidRequestError."""
        if isinstance(error, KafkaError):
            return error_reply(context, request, error)
        if isinstance(error, InvalidRequestError):
            raise error
        return self._unexpected(context, request, error)

    def _unexpected(self, context: RequestContext, request: Any, error: Exception) -> Reply:
        log.error(
            "%s from client %s (%s) failed: this is a bug, please report it with the traceback",
            api_name(context),
            context.client_id,
            context.client_host,
            exc_info=error,
        )
        return error_reply(context, request, KafkaError(ErrorCode.unknown_server_error, str(error)))

    def _read_header(self, client: ClientInfo, frame: memoryview) -> tuple[RequestContext, bool, int]:
        try:
            api_key, api_version, correlation_id, client_id_size = _HEADER.unpack_from(frame)
        except struct.error:
            raise InvalidRequestError(f"a request of {len(frame)} bytes is shorter than its header") from None
        position = _HEADER.size
        if len(frame) > MAX_OTHER_FRAME:
            check_size(frame, len(frame))
        client_id = None
        if client_id_size >= 0:
            client_id = str(frame[position : position + client_id_size], "utf-8", "replace")
            position += client_id_size
            if position > len(frame):
                raise InvalidRequestError("the client id is longer than the request")
        client.client_id = client_id
        context = RequestContext(api_key, api_version, correlation_id, client_id, client)
        offered = self._ranges.get(api_key)
        if offered is None:
            raise InvalidRequestError(f"unsupported API key {api_key}")
        if not offered.lowest <= api_version <= offered.highest:
            if api_key == _API_VERSIONS:
                return context, False, position
            raise InvalidRequestError(
                f"unsupported version {api_version} of {ApiKey(api_key).name};"
                f" supported are {offered.lowest} to {offered.highest}{_ADVICE.get(api_key, '')}"
            )
        if schema(api_key, api_version).has_flexible_request_header:
            position = skip_tags(frame, position)
        return context, True, position

    # ApiVersions is here because it returns the table.

    def _api_versions(self, context: RequestContext, request: Any) -> Fields:
        name = getattr(request, "client_software_name", None)
        if name is not None:
            software_version = request.client_software_version
            if not _is_software_name(name) or not _is_software_name(software_version):
                return self._versions_answer(ErrorCode.invalid_request)
            context.client.software_name = name
            context.client.software_version = software_version
        return self._versions_answer(ErrorCode.none)

    def _versions_answer(self, error: ErrorCode) -> Fields:
        return {
            "error_code": error,
            "api_keys": [
                {
                    "api_key": key,
                    "min_version": _ADVERTISED_FROM.get(key, offered.lowest),
                    "max_version": offered.highest,
                }
                for key, offered in sorted(self._ranges.items())
            ]
            if error is ErrorCode.none
            else [],
            **(self.features() if error is ErrorCode.none else {}),
        }

    def _unsupported_api_versions(self, context: RequestContext) -> Parts:
        # KIP-511: reply in version 0, which every client can read, with the supported versions.
        offered = self._ranges[_API_VERSIONS]
        fields = {
            "error_code": ErrorCode.unsupported_version,
            "api_keys": [{"api_key": _API_VERSIONS, "min_version": offered.lowest, "max_version": offered.highest}],
        }
        return _encode(context, schema(_API_VERSIONS, 0), fields)


def _run_done(
    contexts: Sequence[RequestContext],
    schemas: Sequence[Schema],
    invalid: InvalidRequestError | None,
    done: Promise[Sequence[Reply | InvalidRequestError]],
) -> Parts:
    return _encode_run([(context, None) for context in contexts], schemas, done.result(), invalid)


def _encode_run(
    requests: Sequence[tuple[RequestContext, Any]],
    schemas: Sequence[Schema],
    replies: Sequence[Reply | InvalidRequestError],
    invalid: InvalidRequestError | None,
) -> Parts:
    """Concatenate the replies. At the first error, raise InvalidRequestError with the replies before it."""
    parts: Parts = []
    for (context, _), api_schema, reply in zip(requests, schemas, replies, strict=True):
        if isinstance(reply, InvalidRequestError):
            raise InvalidRequestError(str(reply), parts)
        parts += _encode(context, api_schema, reply)
    if invalid is not None:
        raise InvalidRequestError(str(invalid), parts) from invalid
    return parts


async def _ready(reply: Reply) -> Reply:
    return reply


def _encode(context: RequestContext, api_schema: Schema, reply: Reply) -> Parts:
    if isinstance(reply, RawReply):
        return _frame(context, api_schema, reply.parts)
    out = bytearray(8)
    if api_schema.has_flexible_response_header:
        out.append(0)
    api_schema.encode_response(out, reply)
    _SIZE_CORRELATION.pack_into(out, 0, len(out) - _SIZE_FIELD, context.correlation_id)
    return [out]


def _frame(context: RequestContext, api_schema: Schema, parts: Sequence[bytes | bytearray | FileSlice]) -> Parts:
    """Put the header before the parts of an encoded body. Return no parts for an empty body, which is not sent."""
    if not parts:
        return []
    tags = b"\x00" if api_schema.has_flexible_response_header else b""
    first = parts[0]
    content_size = _part_size(first) if len(parts) == 1 else sum(map(_part_size, parts))
    head = _SIZE_CORRELATION.pack(_CORRELATION_ID_FIELD + len(tags) + content_size, context.correlation_id) + tags
    if isinstance(first, FileSlice):
        return [head, *parts]
    return [head + first, *parts[1:]]


def _part_size(part: bytes | bytearray | FileSlice) -> int:
    return part.size if type(part) is FileSlice else len(part)


def _is_software_name(name: str) -> bool:
    """Return True for letters, digits, '-' and '.', with a letter or digit first and last (KIP-511)."""
    stripped = name.replace("-", "a").replace(".", "a")
    return name.isascii() and stripped.isalnum() and name[0].isalnum() and name[-1].isalnum()


def _range(api_key: int) -> VersionRange:
    known = versions(api_key)
    assert known is not None, f"no schema for API {api_key}"
    return known
