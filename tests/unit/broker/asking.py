"""Sends requests to handlers through the schemas of a version, as a client would."""

import asyncio
from collections.abc import Awaitable, Generator, Mapping
from typing import Any
from uuid import UUID

import pytest

from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import ClientInfo, Handler, RawReply, RequestContext
from headrace.slices import finish
from headrace.storage.files.log_file import FileSlice
from headrace.wire.apis import ApiKey, request_encoder, response_reader, schema, versions

TOPIC_ID = UUID(int=5)


def versions_around(key: ApiKey, *changes: int) -> list[int]:
    """Return the oldest and the newest version of an API, and the versions just before and after each of `changes`.

    tests/parity compares the replies in all versions with Kafka's.
    """
    known = versions(key)
    assert known is not None
    return sorted({known.lowest, known.highest, *changes, *(version - 1 for version in changes)})


def raises_code(code: ErrorCode) -> "pytest.RaisesExc[KafkaError]":
    return pytest.raises(KafkaError, check=lambda error: error.code is code)


def client_at(listener: str = "PLAINTEXT") -> ClientInfo:
    return ClientInfo(listener=listener, host="192.0.2.9", port=7, local_address=("192.0.2.1", 19092))


async def ask(
    routes: Mapping[ApiKey, Handler], api_key: ApiKey, version: int, fields: dict[str, Any], listener: str = "PLAINTEXT"
) -> Any:
    """Return the decoded response to a request with `fields`."""
    return await _response(api_key, version, _reply(routes, api_key, version, fields, client_at(listener)))


def send(
    routes: Mapping[ApiKey, Handler], api_key: ApiKey, version: int, fields: dict[str, Any], client: ClientInfo
) -> asyncio.Task[Any]:
    """Call the handler at once, and return a task for the decoded response."""
    return asyncio.ensure_future(_response(api_key, version, _reply(routes, api_key, version, fields, client)))


def _reply(
    routes: Mapping[ApiKey, Handler], api_key: ApiKey, version: int, fields: dict[str, Any], client: ClientInfo
) -> Any:
    out = bytearray()
    request_encoder(api_key, version)(out, fields)
    request, _ = schema(api_key, version).read_request(bytes(out), 0)
    return routes[api_key](RequestContext(int(api_key), version, 1, "me", client), request)


async def _response(api_key: ApiKey, version: int, reply: Any) -> Any:
    if isinstance(reply, Generator):
        reply = await finish(reply)
    if not isinstance(reply, RawReply) and isinstance(reply, Awaitable):
        reply = await reply
    response = bytearray()
    if isinstance(reply, RawReply):
        for part in reply.parts:
            response += part.read() if isinstance(part, FileSlice) else part
    else:
        schema(api_key, version).encode_response(response, reply)
    entity, end = response_reader(api_key, version)(bytes(response), 0)
    assert end == len(response), "the response has trailing bytes"
    return entity


def produce_fields(
    batches: Mapping[int, bytes], *, acks: int = -1, timeout_ms: int = 60_000, transactional_id: str | None = None
) -> dict[str, Any]:
    """Return the fields of a Produce request with batches for partitions of topic t."""
    data = [{"index": index, "records": records} for index, records in batches.items()]
    return {
        "transactional_id": transactional_id,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [{"name": "t", "partition_data": data}],
    }


def fetch_fields(
    offsets: Mapping[int, int],
    *,
    replica: int = -1,
    epoch: int = -1,
    last_epoch: int = -1,
    wait_ms: int = 0,
    session: tuple[int, int] = (0, -1),
    rack: str = "",
    min_bytes: int = 1,
    max_bytes: int = 50 << 20,
    partition_bytes: int = 1 << 20,
    read_committed: bool = False,
) -> dict[str, Any]:
    """Return the fields of a Fetch request of any version for partitions of topic t."""
    partitions = [
        {
            "partition": index,
            "current_leader_epoch": epoch,
            "last_fetched_epoch": last_epoch,
            "fetch_offset": offset,
            "log_start_offset": 0,
            "partition_max_bytes": partition_bytes,
        }
        for index, offset in offsets.items()
    ]
    return {
        "replica_id": replica,
        "replica_state": {"replica_id": replica, "replica_epoch": -1},
        "max_wait": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": int(read_committed),
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [{"topic": "t", "topic_id": TOPIC_ID, "partitions": partitions}] if partitions else [],
        "forgotten_topics_data": [],
        "rack_id": rack,
    }
