"""Asks handlers as a client would: request and answer go through their schemas in the version asked for."""

from collections.abc import Awaitable, Generator, Mapping
from typing import Any

import pytest

from headrace.server.context import ClientInfo, Handler, RawReply, RequestContext
from headrace.slices import finish
from headrace.storage.files.log_file import FileSlice
from headrace.wire.apis import ApiKey, request_encoder, response_reader, schema, versions


def every_version(key: ApiKey) -> pytest.MarkDecorator:
    """Run a test once for each `version` of the API."""
    known = versions(key)
    assert known is not None
    return pytest.mark.parametrize("version", range(known.lowest, known.highest + 1))


async def ask(
    routes: Mapping[ApiKey, Handler], api_key: ApiKey, version: int, fields: dict[str, Any], listener: str = "PLAINTEXT"
) -> Any:
    """The decoded answer to the request that `fields` make."""
    out = bytearray()
    request_encoder(api_key, version)(out, fields)
    request, _ = schema(api_key, version).read_request(bytes(out), 0)
    client = ClientInfo(listener=listener, host="192.0.2.9", port=7, local_address=("192.0.2.1", 19092))
    reply = routes[api_key](RequestContext(int(api_key), version, 1, "me", client), request)
    if isinstance(reply, Generator):
        reply = await finish(reply)
    if not isinstance(reply, RawReply) and isinstance(reply, Awaitable):
        reply = await reply
    answer = bytearray()
    if isinstance(reply, RawReply):
        for part in reply.parts:
            assert not isinstance(part, FileSlice)
            answer += part
    else:
        schema(api_key, version).encode_response(answer, reply)
    entity, end = response_reader(api_key, version)(bytes(answer), 0)
    assert end == len(answer), "the answer is longer than its schema"
    return entity
