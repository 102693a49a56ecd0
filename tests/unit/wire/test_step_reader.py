"""Requests of a controller are read in steps as they are in one go, and malformed ones are refused."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

import pytest

from headrace.wire.apis import ApiKey, request_encoder, schema

MANY: Final = 200
SENDER: Final = {"controller_id": 1, "is_kraft_controller": False, "controller_epoch": 2, "broker_epoch": 3}
STATE: Final = {"partition_index": 0, "controller_epoch": 1, "leader": 1, "leader_epoch": 1, "isr": [1, 2]}
TOPIC: Final = {"topic_name": "t", "topic_id": uuid.UUID(int=5)}
ENDPOINT: Final = {"port": 1, "host": "h", "listener": "l", "security_protocol": 0}

UPDATE: Final = {
    **SENDER,
    "type": 2,
    "topic_states": [
        {**TOPIC, "partition_states": [{**STATE, "zk_version": 0, "replicas": [1, 2], "offline_replicas": [2]}] * 70},
        {**TOPIC, "topic_id": None, "partition_states": []},
    ],
    "live_brokers": [{"id": 1, "endpoints": [ENDPOINT], "rack": None}, {"id": 2, "endpoints": [], "rack": "r"}],
}
LEAD: Final = {
    **SENDER,
    "type": 1,
    "topic_states": [{**TOPIC, "partition_states": [{**STATE, "partition_epoch": 4, "replicas": [1, 2]}]}],
    "live_leaders": [{"broker_id": 1, "host_name": "h", "port": 1}],
}
STOP: Final = {
    **SENDER,
    "topic_states": [
        {
            "topic_name": "t",
            "partition_states": [{"partition_index": 1, "leader_epoch": -2, "delete_partition": True}],
        }
    ],
}
REQUESTS: Final = [
    (ApiKey.UPDATE_METADATA, 8, UPDATE),
    (ApiKey.UPDATE_METADATA, 8, {**UPDATE, "type": 0, "topic_states": [], "live_brokers": []}),
    (ApiKey.LEADER_AND_ISR, 7, LEAD),
    (ApiKey.STOP_REPLICA, 4, STOP),
]


def encoded(key: ApiKey, version: int, message: Mapping[str, Any]) -> bytes:
    out = bytearray()
    request_encoder(key, version)(out, message)
    return bytes(out)


def read(key: ApiKey, version: int, content: bytes) -> tuple[Any, int, int]:
    """Return the request, its end, and the number of pauses."""
    reader = schema(key, version).read_in_steps
    assert reader is not None
    steps = reader(content, 0)
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request, position = end.value
            return request, position, pauses
        pauses += 1


def test_a_request_is_read_as_in_one_go_and_refused_if_it_is_truncated() -> None:
    for key, version, message in REQUESTS:
        content = encoded(key, version, message)
        request, position, _ = read(key, version, content)
        assert (request, position) == schema(key, version).read_request(content, 0)
        assert position == len(content)
        for size in range(len(content) - 1, 0, -97):
            with pytest.raises(Exception, match=r".*"):
                pytest.fail(f"{size} bytes: {read(key, version, content[:size])}")


def test_impossible_arrays_are_refused() -> None:
    content = encoded(ApiKey.STOP_REPLICA, 4, {**STOP, "topic_states": []})
    assert content.endswith(b"\x01\x00")
    for count, reason in ((b"\x00", "an array is null"), (b"\xff\xff\xff\xff\x0f", "declares 4294967294 items")):
        with pytest.raises(ValueError, match=reason):
            read(ApiKey.STOP_REPLICA, 4, content[:-2] + count + b"\x00")


def test_impossible_replicas_are_refused_before_memory_is_allocated() -> None:
    content = encoded(ApiKey.LEADER_AND_ISR, 7, LEAD)
    isr = b"\x03" + (1).to_bytes(4) + (2).to_bytes(4)
    assert isr in content
    with pytest.raises(ValueError, match="declares 4294967294 items"):
        read(ApiKey.LEADER_AND_ISR, 7, content.replace(isr, b"\xff\xff\xff\xff\x0f" + isr[1:], 1))


def test_reading_pauses_often() -> None:
    many: dict[str, Mapping[str, Any]] = {
        "topics": {"topic_states": [{**TOPIC, "partition_states": []}] * MANY},
        "endpoints": {"live_brokers": [{"id": 1, "endpoints": [ENDPOINT] * MANY, "rack": None}]},
        "brokers": {"live_brokers": [{"id": 1, "endpoints": [], "rack": None}] * MANY},
    }
    for name, items in many.items():
        content = encoded(ApiKey.UPDATE_METADATA, 8, {**UPDATE, "topic_states": [], **items})
        _, _, pauses = read(ApiKey.UPDATE_METADATA, 8, content)
        assert pauses >= MANY // 64, name


def test_other_requests_are_read_in_one_go() -> None:
    assert schema(ApiKey.METADATA, 12).read_in_steps is None
