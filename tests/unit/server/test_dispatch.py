"""From frames to replies: versions, headers, invalid bytes, failing handlers."""

import asyncio
import contextlib
import logging
import struct
import weakref
from collections.abc import Awaitable, Sequence
from functools import cache
from typing import Any

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.server import error_replies, large_answers
from headrace.server.context import NO_REPLY, ClientInfo, RawReply, Reply, RequestContext
from headrace.server.dispatch import Dispatcher, Replies
from headrace.server.error_replies import error_reply
from headrace.server.frames import InvalidRequestError, Parts
from headrace.server.large_requests import LARGE_FRAME, MANY_ENTRIES, MAX_WAITING, LargeRequests
from headrace.slices import Steps
from headrace.wire.apis import ApiKey, request_encoder, response_reader, versions
from headrace.wire.encoder import Fields
from headrace.wire.items import made_of
from tests.support.schemas import Versions, many_versions


@pytest.fixture
def client() -> ClientInfo:
    return ClientInfo(listener="PLAINTEXT", host="192.0.2.1", port=7, local_address=("192.0.2.2", 9092))


@pytest.fixture
def dispatcher() -> Dispatcher:
    return Dispatcher()


def request(
    key: int, version: int, body: bytes = b"", *, client_id: bytes | None = b"me", tags: bytes = b""
) -> memoryview:
    size = -1 if client_id is None else len(client_id)
    return memoryview(struct.pack(">hhih", key, version, 77, size) + (client_id or b"") + tags + body).toreadonly()


def body_of(key: int, version: int, fields: dict[str, Any]) -> bytes:
    out = bytearray()
    request_encoder(key, version)(out, fields)
    return bytes(out)


def parse(parts: Any, key: int, version: int, *, flexible: bool) -> Any:
    data = b"".join(bytes(part) for part in parts)
    size, correlation_id = struct.unpack_from(">ii", data)
    assert size == len(data) - 4
    assert correlation_id == 77
    start = 9 if flexible else 8
    answer, read = response_reader(key, version)(data, start)
    assert start + read == len(data)
    return answer


SOFTWARE = {"client_software_name": "a-client", "client_software_version": "1.2.3"}


@pytest.mark.parametrize("version", [0, 3, 4])
def test_api_versions_returns_exactly_the_apis_with_a_handler(
    dispatcher: Dispatcher, client: ClientInfo, version: int
) -> None:
    dispatcher.add_routes({ApiKey.HEARTBEAT: lambda _, __: {}})
    flexible = version >= 3
    body = body_of(ApiKey.API_VERSIONS, version, SOFTWARE)

    parts = dispatcher.handle(client, request(18, version, body, tags=b"\0" if flexible else b""))

    answer = parse(parts, ApiKey.API_VERSIONS, version, flexible=False)
    offered = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
    assert offered == {key: versions(key) for key in (ApiKey.HEARTBEAT, ApiKey.API_VERSIONS)}
    if flexible:
        assert (client.software_name, client.software_version) == ("a-client", "1.2.3")


def test_produce_is_advertised_from_version_0_for_old_librdkafka_but_refused_below_3(
    dispatcher: Dispatcher, client: ClientInfo
) -> None:
    dispatcher.add_routes({ApiKey.PRODUCE: lambda _, __: {}})

    answer = parse(dispatcher.handle(client, request(18, 0)), ApiKey.API_VERSIONS, 0, flexible=False)

    assert (0, 0, 13) in [(key.api_key, key.min_version, key.max_version) for key in answer.api_keys]
    with pytest.raises(InvalidRequestError, match="supported are 3 to 13"):
        dispatcher.handle(client, request(0, 2))


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(
    dispatcher: Dispatcher, client: ClientInfo
) -> None:
    answer = parse(dispatcher.handle(client, request(18, 99)), 18, 0, flexible=False)

    assert answer.error_code is ErrorCode.unsupported_version
    assert [(key.api_key, key.max_version) for key in answer.api_keys] == [(18, versions(18).highest)]  # type: ignore[union-attr]


def test_an_invalid_software_name_is_an_invalid_request(dispatcher: Dispatcher, client: ClientInfo) -> None:
    body = body_of(18, 4, SOFTWARE | {"client_software_name": "bad name\n"})

    answer = parse(dispatcher.handle(client, request(18, 4, body, tags=b"\0")), 18, 4, flexible=False)

    assert answer.error_code is ErrorCode.invalid_request
    assert client.software_name == "unknown"


def test_a_request_that_cannot_be_answered_closes_the_connection_with_a_reason(
    dispatcher: Dispatcher, client: ClientInfo
) -> None:
    dispatcher.add_routes({ApiKey.HEARTBEAT: lambda _, __: {}})
    for frame, reason in (
        (memoryview(b""), "shorter than its header"),
        (memoryview(b"\0" * 9), "shorter than its header"),
        (request(999, 0), "unsupported API key 999"),
        (request(12, 99), "unsupported version 99 of HEARTBEAT; supported are 0 to 4"),
        (request(12, -1), "version -1 of HEARTBEAT"),
        (memoryview(struct.pack(">hhih", 12, 0, 77, 100) + b"short"), "client id is longer"),
        (request(12, 0, b"\x7f\xff"), "HEARTBEAT v0 cannot be read"),
        (request(12, 4, b""), "ends inside its header"),
        (request(12, 4, b"", tags=b"\x01\x00\x7f"), "ends inside its header"),
        (request(12, 4, b"", tags=b"\xff\xff\xff\xff\xff\xff"), "longer than five bytes"),
    ):
        with pytest.raises(InvalidRequestError, match=reason):
            pytest.fail(f"{reason}: {dispatcher.handle(client, frame.toreadonly())}")


HEARTBEAT = {"group_id": "g", "generation_id": 1, "member_id": "m"}


def heartbeat(version: int = 4) -> memoryview:
    return request(12, version, body_of(12, version, HEARTBEAT), tags=b"\0" if version == 4 else b"")


def test_handlers_get_the_client(dispatcher: Dispatcher, client: ClientInfo) -> None:
    seen: list[RequestContext] = []

    def handler(context: RequestContext, _: Any) -> Reply:
        seen.append(context)
        return {}

    dispatcher.add_routes({ApiKey.HEARTBEAT: handler})
    dispatcher.handle(client, heartbeat())

    (context,) = seen
    assert (context.client_id, context.principal, context.listener) == ("me", "User:ANONYMOUS", "PLAINTEXT")
    assert (context.client_host, context.local_address) == ("192.0.2.1", ("192.0.2.2", 9092))


def test_tags_of_the_header_are_skipped(dispatcher: Dispatcher, client: ClientInfo) -> None:
    dispatcher.add_routes({ApiKey.HEARTBEAT: lambda _, __: {}})
    body = body_of(12, 4, HEARTBEAT)

    parts = dispatcher.handle(client, request(12, 4, body, tags=b"\x01\x05\x03abc"))

    assert parse(parts, 12, 4, flexible=True).error_code is ErrorCode.none


@pytest.mark.parametrize("later", [False, True])
async def test_a_kafka_error_becomes_the_error_of_the_api(
    dispatcher: Dispatcher, client: ClientInfo, later: bool
) -> None:
    def refuse(_: RequestContext, __: Any) -> Reply:
        raise KafkaError(ErrorCode.illegal_generation)

    async def refuse_later(context: RequestContext, body: Any) -> Reply:
        return refuse(context, body)

    dispatcher.add_routes({ApiKey.HEARTBEAT: refuse_later if later else refuse})
    answer = dispatcher.handle(client, heartbeat())
    parts = await answer if isinstance(answer, Awaitable) else answer

    assert parse(parts, 12, 4, flexible=True).error_code is ErrorCode.illegal_generation


def test_an_exception_in_a_handler_is_an_unknown_server_error_and_logged(
    dispatcher: Dispatcher, client: ClientInfo, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: RequestContext, __: Any) -> Reply:
        raise ZeroDivisionError("oh")

    dispatcher.add_routes({ApiKey.HEARTBEAT: broken})
    with caplog.at_level(logging.ERROR):
        answer = parse(dispatcher.handle(client, heartbeat(0)), 12, 0, flexible=False)

    assert answer.error_code is ErrorCode.unknown_server_error
    assert "HEARTBEAT v0 from client me (192.0.2.1) failed" in caplog.text


def test_an_error_that_the_reply_cannot_express_closes_the_connection(
    dispatcher: Dispatcher, client: ClientInfo
) -> None:
    def refuse(_: RequestContext, __: Any) -> Reply:
        raise KafkaError(ErrorCode.invalid_request, "why not")

    dispatcher.add_routes({ApiKey.LIST_OFFSETS: refuse})
    body = body_of(2, 1, {"replica_id": -1, "topics": []})

    with pytest.raises(InvalidRequestError, match="LIST_OFFSETS of client id 'me' failed: why not"):
        dispatcher.handle(client, request(2, 1, body))


def test_encoded_replies_are_framed_and_an_empty_one_sends_nothing(dispatcher: Dispatcher, client: ClientInfo) -> None:
    replies: list[Reply] = [RawReply((b"\0\0", b"\0\0\0\0")), NO_REPLY]
    dispatcher.add_routes({ApiKey.HEARTBEAT: lambda _, __: replies.pop(0)})

    parts = dispatcher.handle(client, heartbeat(0))
    assert isinstance(parts, list)
    assert b"".join(bytes(part) for part in parts) == struct.pack(">ii", 10, 77) + bytes(6)  # type: ignore[arg-type]
    assert dispatcher.handle(client, heartbeat(0)) == []


def produce(acks: int = 1) -> memoryview:
    return request(0, 3, body_of(0, 3, {"transactional_id": None, "acks": acks, "timeout": 0, "topic_data": []}))


@pytest.mark.parametrize(
    ("end", "later"),
    [
        ("valid", True),
        ("failed reply", False),
        ("invalid request", False),
        ("invalid request", True),
        ("exception", False),
        ("exception", True),
    ],
)
async def test_produce_requests_of_a_run_are_answered_up_to_an_invalid_one(
    dispatcher: Dispatcher, client: ClientInfo, end: str, later: bool
) -> None:
    def reply(_: RequestContext, body: Any) -> RawReply | InvalidRequestError:
        return RawReply((b"%d" % body.acks,)) if body.acks else InvalidRequestError("it failed")

    def reply_all(requests: Sequence[tuple[RequestContext, Any]]) -> Replies:
        if end == "exception":
            raise ZeroDivisionError
        return [reply(*item) for item in requests]

    async def reply_later(requests: Sequence[tuple[RequestContext, Any]]) -> Replies:
        await asyncio.sleep(0)
        return reply_all(requests)

    async def answer() -> bytes:
        parts = dispatcher.handle_run(client, frames)
        return b"".join(map(bytes, await parts if isinstance(parts, Awaitable) else parts))  # type: ignore[arg-type]

    dispatcher.add_produce(reply, reply_later if later else reply_all)  # type: ignore[arg-type]
    frames = [produce(1), produce(2), produce(0 if end == "failed reply" else 3)]
    if end == "invalid request":
        frames[2] = frames[2][:-1]
    answers = [struct.pack(">ii", 5, 77) + b"%d" % acks for acks in (1, 2, 3)]
    if end == "valid":
        assert await answer() == b"".join(answers)
        return
    reasons = {
        "invalid request": "cannot be read",
        "failed reply": "it failed",
        "exception": "failed: unknown_server_error",
    }
    with pytest.raises(InvalidRequestError, match=reasons[end]) as caught:
        await answer()
    expected = [] if end == "exception" else answers[:2]
    assert b"".join(map(bytes, caught.value.answers)) == b"".join(expected)  # type: ignore[arg-type]


@many_versions
def test_every_api_with_errors_in_its_items_has_all_fields_of_an_error_reply(
    client: ClientInfo, api_versions: Versions
) -> None:
    for key, version in api_versions:
        if key in error_replies._ITEMS:
            context = RequestContext(key, version, 77, "me", client)
            error = KafkaError(ErrorCode.unknown_server_error, "why")
            assert error_reply(context, _AnyRequest(), error), f"{key.name} v{version}"


class _AnyRequest:
    """A request with every field, all empty."""

    def __getattr__(self, name: str) -> Any:
        return "" if name.endswith("_id") else ()


@cache
def many_groups(count: int, name_size: int = 0) -> memoryview:
    names = [f"{number:0{name_size}}" for number in range(count)]
    body = body_of(ApiKey.DESCRIBE_GROUPS, 5, {"groups": names, "include_authorized_operations": False})
    return request(ApiKey.DESCRIBE_GROUPS, 5, body, tags=b"\0")


def described(names: Sequence[str]) -> Fields:
    nothing = {"group_state": "", "protocol_type": "", "protocol_data": "", "members": []}
    return {"groups": made_of(names, lambda name: {"group_id": name, **nothing})}


@pytest.mark.parametrize(
    ("kind", "count", "name_size"),
    [
        ("at once", 3, 0),
        ("in slices", 150, 0),
        ("later", 150, 0),
        ("at once", MANY_ENTRIES + 1, 0),
        ("error", 100, LARGE_FRAME // 100),
        ("in slices", 100, LARGE_FRAME // 100),
        ("later", 100, LARGE_FRAME // 100),
    ],
)
async def test_large_requests_are_answered_like_small_ones(
    dispatcher: Dispatcher,
    client: ClientInfo,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    count: int,
    name_size: int,
) -> None:
    if name_size:
        monkeypatch.setattr("headrace.slices.SLICE_S", 0)

    def answer(context: RequestContext, decoded: Any) -> Any:
        if kind == "error":
            raise KafkaError(ErrorCode.not_coordinator, "elsewhere")
        return {"at once": described, "in slices": in_steps, "later": delayed}[kind](decoded.groups)

    def in_steps(names: Sequence[str]) -> Steps[Fields]:
        for _ in names:
            yield
        return described(names)

    async def delayed(names: Sequence[str]) -> Fields:
        await asyncio.sleep(0)
        return described(names)

    dispatcher.add_routes({ApiKey.DESCRIBE_GROUPS: answer})
    scratch = bytearray(many_groups(count, name_size))
    parts: Any = dispatcher.handle(client, memoryview(scratch).toreadonly())
    scratch[:] = bytes(len(scratch))  # another request overwrites the buffer
    if isinstance(parts, Awaitable):
        parts = await parts

    answered = parse(parts, ApiKey.DESCRIBE_GROUPS, 5, flexible=True)
    assert [group.group_id for group in answered.groups] == [f"{number:0{name_size}}" for number in range(count)]
    error = ErrorCode.not_coordinator if kind == "error" else ErrorCode.none
    assert {group.error_code for group in answered.groups} == {error}


def later(dispatcher: Dispatcher, client: ClientInfo, frame: memoryview) -> asyncio.Future[Parts]:
    """Return the reply to a request that is not answered at once."""
    reply = dispatcher.handle(client, frame)
    assert isinstance(reply, Awaitable)
    return asyncio.ensure_future(reply)


async def test_large_requests_are_handled_one_at_a_time(dispatcher: Dispatcher, client: ClientInfo) -> None:
    running = most = 0

    async def answer(context: RequestContext, decoded: Any) -> Fields:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return described(decoded.groups)

    dispatcher.add_routes({ApiKey.DESCRIBE_GROUPS: answer})
    await asyncio.gather(*(later(dispatcher, client, many_groups(MANY_ENTRIES + 1)) for _ in range(2)))
    assert most == 1


async def test_waiting_requests_do_not_delay_other_large_ones(dispatcher: Dispatcher, client: ClientInfo) -> None:
    parked = asyncio.Event()

    async def join(context: RequestContext, decoded: Any) -> Fields:
        await parked.wait()
        return {"generation_id": 1, "protocol_name": "p", "leader": "", "member_id": "", "members": []}

    protocols = [{"name": f"p{number}", "metadata": b""} for number in range(500)]
    body = body_of(
        ApiKey.JOIN_GROUP,
        5,
        {
            "group_id": "g",
            "session_timeout": 1,
            "rebalance_timeout": 1,
            "member_id": "",
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": protocols,
        },
    )
    dispatcher.add_routes({ApiKey.JOIN_GROUP: join, ApiKey.DESCRIBE_GROUPS: lambda _, body: described(body.groups)})
    joining = later(dispatcher, client, request(ApiKey.JOIN_GROUP, 5, body))
    await asyncio.wait_for(later(dispatcher, client, many_groups(MANY_ENTRIES + 1)), 20)
    assert not joining.done()
    parked.set()
    assert await joining


async def test_too_many_entries_end_the_connection(dispatcher: Dispatcher, client: ClientInfo) -> None:
    dispatcher.add_routes({ApiKey.FIND_COORDINATOR: lambda _, __: {}})
    body = b"\0\xa2\x8d\x06" + b"\1" * 100_001 + b"\0"
    with pytest.raises(InvalidRequestError, match="more than 100000 entries"):
        await later(dispatcher, client, request(ApiKey.FIND_COORDINATOR, 4, body, tags=b"\0"))


async def test_a_reply_over_the_limit_ends_the_connection(
    dispatcher: Dispatcher, client: ClientInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(large_answers, "MAX_ANSWER_BYTES", 1 << 20)
    long = "n" * 30_000
    dispatcher.add_routes({ApiKey.DESCRIBE_GROUPS: lambda _, __: described([long] * 100)})
    with pytest.raises(InvalidRequestError, match="split the request"):
        await later(dispatcher, client, many_groups(MANY_ENTRIES + 1))


def test_only_produce_requests_may_have_the_maximum_size(
    dispatcher: Dispatcher, client: ClientInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("dispatch", "frames"):
        monkeypatch.setattr(f"headrace.server.{module}.MAX_OTHER_FRAME", 1000)
    dispatcher.add_routes({ApiKey.HEARTBEAT: lambda _, __: {}})
    with pytest.raises(InvalidRequestError, match="only Produce requests"):
        dispatcher.handle(client, request(ApiKey.HEARTBEAT, 0, bytes(1000)))


def many_batches(count: int) -> memoryview:
    data = [{"index": index, "records": None} for index in range(count)]
    fields = {"transactional_id": None, "acks": 1, "timeout": 1, "topic_data": [{"name": "t", "partition_data": data}]}
    return request(ApiKey.PRODUCE, 9, body_of(ApiKey.PRODUCE, 9, fields), tags=b"\0")


@pytest.mark.parametrize("counts", [[MANY_ENTRIES], [3, 3], [3, 500], [900, 900, 900]])
async def test_produce_requests_with_many_batches_have_their_own_handler(
    dispatcher: Dispatcher, client: ClientInfo, counts: list[int]
) -> None:
    runs: list[tuple[str, int]] = []

    def few(requests: Sequence[tuple[RequestContext, Any]]) -> Replies:
        runs.append(("few", len(requests)))
        return [RawReply((b"%d" % len(body.topic_data[0].partition_data),)) for _, body in requests]

    async def many(requests: Sequence[tuple[RequestContext, Any]]) -> Replies:
        await asyncio.sleep(0)
        few(requests)
        runs[-1] = ("many", len(requests))
        return few(requests)[: runs.pop()[1]]

    dispatcher.add_produce(lambda *_: NO_REPLY, few, many)
    frames = [many_batches(count) for count in counts]
    answer: Any = dispatcher.handle(client, frames[0]) if len(frames) == 1 else dispatcher.handle_run(client, frames)
    parts = b"".join(map(bytes, await answer if isinstance(answer, Awaitable) else answer))
    position = 0
    for count in counts:
        (size,) = struct.unpack_from(">i", parts, position)
        assert parts[position + 9 : position + 4 + size] == b"%d" % count
        position += 4 + size
    assert position == len(parts)
    expected = {1: [("many", 1)], 2: [("few" if counts[-1] == 3 else "many", 2)], 3: [("many", 1)] * 3}
    assert runs == expected[len(counts)]


async def test_a_waiting_large_fetch_does_not_keep_its_request(
    dispatcher: Dispatcher, client: ClientInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[weakref.ref[Any]] = []
    waits: list[asyncio.Future[Reply]] = []

    class Request:
        pass

    def decode(*_: Any) -> Request:
        decoded = Request()
        requests.append(weakref.ref(decoded))
        return decoded

    monkeypatch.setattr("headrace.server.dispatch.decode", decode)

    def fetch(_: RequestContext, __: Any) -> Steps[Reply | Awaitable[Reply]]:
        yield
        waits.append(asyncio.get_running_loop().create_future())
        return waits[-1]

    dispatcher.add_routes({ApiKey.FETCH: fetch})
    partition = {"current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": 0, "partition_max_bytes": 1}
    fields = {
        "replica_id": -1,
        "max_wait": 1000,
        "min_bytes": 1,
        "max_bytes": 1,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "t", "partitions": [{**partition, "partition": index} for index in range(600)]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    frames = [request(1, 11, body_of(ApiKey.FETCH, 11, fields)) for _ in range(2)]
    answers = [later(dispatcher, client, frame) for frame in frames]
    while len(waits) < 2:  # noqa: ASYNC110  no event signals that both have begun
        await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert [item() for item in requests] == [None, None]
    assert dispatcher._large_requests._waiting[ApiKey.FETCH] == 0
    for wait in waits:
        wait.set_result(RawReply((b"answer",)))
    assert [b"".join(parts)[8:] for parts in await asyncio.gather(*answers)] == [b"answer"] * 2  # type: ignore[arg-type]


@pytest.mark.parametrize(("api", "other"), [(ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP), (ApiKey.SYNC_GROUP, ApiKey.FETCH)])
def test_long_waiting_requests_have_their_own_memory_limit(client: ClientInfo, api: ApiKey, other: ApiKey) -> None:
    large = LargeRequests()
    half = MAX_WAITING // 2 + 1
    mine, others, read = (RequestContext(int(key), 0, 1, "me", client) for key in (api, other, ApiKey.DESCRIBE_GROUPS))
    with contextlib.ExitStack() as held:
        for item in (mine, others, read):
            held.enter_context(large.admitted(item, half))
        with pytest.raises(InvalidRequestError, match="large requests are already waiting"):
            held.enter_context(large.admitted(mine, half))
    with large.admitted(mine, half):
        pass
