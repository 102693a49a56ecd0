import asyncio
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from kio.schema.api_versions.v3 import ApiVersionsRequest
from kio.schema.list_offsets.v9.request import ListOffsetsRequest
from kio.schema.list_offsets.v9.response import ListOffsetsResponse
from kio.schema.types import BrokerId
from kio.static.primitive import i8

from headrace.client.link import Link, LinkError
from headrace.wire.apis import ApiKey, schema
from tests.unit.client.peers import Peer

ADDRESS = ("b1", 9092)
REQUEST = ListOffsetsRequest(replica_id=BrokerId(4), isolation_level=i8(0), topics=())
BODY = struct.pack(">ib", 4, 0) + b"\x01\x00"
"""Its encoding."""


def request(correlation_id: int) -> bytes:
    return struct.pack(">hhih", 2, 9, correlation_id, 2) + b"me\0" + BODY


def head(request: bytes) -> tuple[int, int, int]:
    """Return API key, version and correlation id."""
    key, version, correlation_id = struct.unpack_from(">hhi", request)
    return key, version, correlation_id


def answer(request: bytes) -> bytes:
    """Answer ListOffsets and ApiVersions without topics and versions."""
    key, version, correlation_id = head(request)
    out = bytearray(struct.pack(">i", correlation_id))
    if key == ApiKey.API_VERSIONS:
        ranges = [{"api_key": 2, "min_version": 1, "max_version": 8}]
        schema(key, version).encode_response(out, {"api_keys": ranges})
    else:
        out.append(0)
        schema(key, version).encode_response(out, {"topics": []})
    return bytes(out)


def link_to(peer: Peer, *, api_versions: bool = False, timeout_s: float = 5.0) -> Link:
    return Link(lambda: ADDRESS, client_id="me", loop=peer.loop, api_versions=api_versions, timeout_s=timeout_s)


async def ask(link: Link) -> ListOffsetsResponse:
    return await link.call(REQUEST, 9, ListOffsetsResponse)


async def test_calls_use_one_connection_in_order() -> None:
    peer = Peer(answer)
    link = link_to(peer)

    replies = await asyncio.gather(*(ask(link) for _ in range(5)))

    assert [reply.topics for reply in replies] == [()] * 5
    assert len(peer.connections) == 1
    assert peer.requests == [request(number) for number in range(1, 6)]


@pytest.mark.parametrize(("size", "piece_size"), [(10, 1), (1_000_000, 100_000)])
async def test_a_reply_in_pieces_or_larger_than_the_buffer_arrives_whole(size: int, piece_size: int) -> None:
    body = (bytes(range(256)) * 4000)[:size]
    peer = Peer(lambda request: request[4:8] + b"\0" + body)
    peer.piece_size = piece_size
    link = link_to(peer)

    for _ in range(2):
        assert bytes(await link.exchange(1, 17, b"")) == body


async def test_a_callback_gets_the_reply_and_may_ask_again() -> None:
    peer = Peer(answer)
    link = link_to(peer)
    await ask(link)
    bodies: list[object] = []
    last = asyncio.Event()

    def answered(body: memoryview | LinkError) -> None:
        bodies.append(bytes(body) if isinstance(body, memoryview) else body)
        if len(bodies) < 3:
            assert link.is_ready
            link.ask(ApiKey.LIST_OFFSETS, 9, BODY, answered)
            assert not link.is_ready
        else:
            last.set()

    link.ask(ApiKey.LIST_OFFSETS, 9, BODY, answered)
    await asyncio.wait_for(last.wait(), 5)

    assert bodies == [b"\0\0\0\0\1\0"] * 3
    assert peer.requests == [request(number) for number in (1, 2, 3, 4)]


Outcome: TypeAlias = "asyncio.Future[memoryview | LinkError]"


def asked(link: Link) -> Outcome:
    outcome: Outcome = asyncio.get_running_loop().create_future()
    link.ask(ApiKey.LIST_OFFSETS, 9, BODY, outcome.set_result)
    return outcome


def called(link: Link) -> "asyncio.Future[ListOffsetsResponse]":
    return asyncio.ensure_future(ask(link))


@pytest.mark.parametrize("send", [asked, called])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (lambda _, link: link.close(), "the connection was closed on this side"),
        (lambda connection, _: connection.hang_up(), "the peer closed the connection"),
        (lambda connection, _: connection.deliver(struct.pack(">iixx", 6, 99)), "the reply belongs to another request"),
    ],
)
async def test_a_request_fails_with_its_connection(
    send: Callable[..., Any], fault: Callable[..., None], reason: str
) -> None:
    peer = Peer(answer)
    link = link_to(peer)
    await ask(link)
    peer.answer = lambda _: None
    waiting = send(link)
    await asyncio.sleep(0)

    fault(peer.connections[0], link)

    [outcome] = await asyncio.wait_for(asyncio.gather(waiting, return_exceptions=True), 5)
    assert isinstance(outcome, LinkError)
    assert str(outcome) == f"b1:9092: {reason}"
    assert peer.connections[0].is_closing()


async def test_a_callback_gets_an_error_after_the_timeout() -> None:
    peer = Peer(answer)
    link = link_to(peer, timeout_s=0.02)
    await ask(link)
    await asked(link)
    await asyncio.sleep(0.005)  # its timer is still running, and ends too early for the next request
    peer.answer = lambda _: None

    outcome = await asyncio.wait_for(asked(link), 5)

    assert isinstance(outcome, LinkError)
    assert str(outcome) == "b1:9092: no answer within 0.02 s"
    assert peer.connections[0].is_closing()
    assert not link.is_ready


async def test_an_unknown_address_fails_the_call() -> None:
    peer = Peer(answer)
    link = Link(lambda: None, client_id="me", loop=peer.loop, api_versions=False)

    with pytest.raises(LinkError, match="address is unknown"):
        await ask(link)


async def test_a_refused_connection_fails_the_call_and_the_next_one_connects_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep, pauses = asyncio.sleep, []

    async def note(delay_s: float) -> None:
        pauses.append(delay_s)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    peer = Peer(answer)
    peer.refuses = True
    link = link_to(peer)
    with pytest.raises(LinkError, match="b1:9092: refused"):
        await ask(link)
    peer.refuses = False
    began = peer.time()

    await ask(link)

    assert sum(pauses) + peer.time() - began > 0.03


async def test_a_call_without_an_answer_times_out_and_closes_the_connection() -> None:
    peer = Peer(lambda _: None)

    with pytest.raises(LinkError, match=r"no answer within 0\.001 s"):
        await ask(link_to(peer, timeout_s=0.001))

    assert peer.connections[0].is_closing()


async def test_a_cancelled_call_closes_the_connection_so_that_its_late_answer_reaches_nobody() -> None:
    peer = Peer(lambda _: None)
    link = link_to(peer)
    call = asyncio.ensure_future(ask(link))
    await peer.asked()

    call.cancel()
    await asyncio.wait([call])

    assert peer.connections[0].is_closing()
    peer.answer = answer
    await ask(link)
    assert len(peer.connections) == 2


async def test_a_reply_that_nobody_asked_for_closes_the_connection_without_overwriting_the_last_reply() -> None:
    peer = Peer(lambda request: request[4:8] + b"\0last")
    reply = await link_to(peer).exchange(1, 17, b"")

    peer.connections[0].deliver(b"\0\0\0\x05other")

    assert bytes(reply) == b"last"
    assert peer.connections[0].is_closing()


async def test_a_malformed_reply_fails_the_call() -> None:
    peer = Peer(lambda request: answer(request) + b"more")

    with pytest.raises(LinkError, match="4 bytes too long"):
        await ask(link_to(peer))


async def test_another_address_replaces_the_connection() -> None:
    addresses = [("b1", 9092)]
    peer = Peer(answer)
    link = Link(lambda: addresses[-1], client_id="me", loop=peer.loop, api_versions=False)
    await ask(link)
    addresses.append(("b2", 9093))

    await ask(link)

    assert peer.addresses == addresses
    assert peer.connections[0].is_closing()


async def test_a_version_that_the_other_broker_does_not_support_is_not_sent() -> None:
    peer = Peer(answer)

    with pytest.raises(LinkError, match="does not support version 9 of LIST_OFFSETS"):
        await ask(link_to(peer, api_versions=True))

    assert [head(request)[0] for request in peer.requests] == [ApiVersionsRequest.__api_key__]


async def test_a_closed_link_fails_later_calls() -> None:
    peer = Peer(answer)
    link = link_to(peer)
    link.close()

    with pytest.raises(LinkError, match="the connection was closed on this side"):
        await ask(link)

    assert peer.addresses == []
