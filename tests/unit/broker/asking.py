"""Sends requests to handlers through the schemas of a version, as a client would."""

from collections.abc import Awaitable, Generator, Mapping
from typing import Any

from headrace.server.context import ClientInfo, Handler, RawReply, RequestContext
from headrace.slices import finish
from headrace.storage.files.log_file import FileSlice
from headrace.wire.apis import ApiKey, request_encoder, response_reader, schema, versions


def versions_around(key: ApiKey, *changes: int) -> list[int]:
    """Return the oldest and the newest version of an API, and those on both sides of the versions that change it.

    tests/parity compares the replies in all versions with Kafka's.
    """
    known = versions(key)
    assert known is not None
    return sorted({known.lowest, known.highest, *changes, *(version - 1 for version in changes)})


async def ask(
    routes: Mapping[ApiKey, Handler], api_key: ApiKey, version: int, fields: dict[str, Any], listener: str = "PLAINTEXT"
) -> Any:
    """Return the decoded response to a request with `fields`."""
    out = bytearray()
    request_encoder(api_key, version)(out, fields)
    request, _ = schema(api_key, version).read_request(bytes(out), 0)
    client = ClientInfo(listener=listener, host="192.0.2.9", port=7, local_address=("192.0.2.1", 19092))
    reply = routes[api_key](RequestContext(int(api_key), version, 1, "me", client), request)
    if isinstance(reply, Generator):
        reply = await finish(reply)
    if not isinstance(reply, RawReply) and isinstance(reply, Awaitable):
        reply = await reply
    response = bytearray()
    if isinstance(reply, RawReply):
        for part in reply.parts:
            assert not isinstance(part, FileSlice)
            response += part
    else:
        schema(api_key, version).encode_response(response, reply)
    entity, end = response_reader(api_key, version)(bytes(response), 0)
    assert end == len(response), "the response has trailing bytes"
    return entity
