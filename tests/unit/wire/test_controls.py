"""Requests that the controller of Kafka 3.9.1 sent to its brokers are read, and written again byte for byte."""

from dataclasses import asdict
from typing import Any, Final

from headrace.wire.apis import ApiKey, request_encoder, schema

LEAD_AND_FOLLOW: Final = bytes.fromhex(
    "00040007000000010001310000000001000000000100000000000000240002046d6978f54d89b6bcb24b54a383368c684d76"
    "e903000000000000000100000001000000000300000001000000630000000003000000010000006301010100000000000100"
    "00000100000063000000000300000063000000010000000003000000630000000101010100000003000000010a3132372e30"
    "2e302e3100004a9300000000630a3132372e302e302e3100004a9b0000"
)
STOP: Final = bytes.fromhex(
    "000500040000000400013100000000010000000001000000000000002402046d69780300000000fffffffe000000000001fffffffe00000000"
)
DELETE: Final = bytes.fromhex(
    "000500040000000500013100000000010000000001000000000000002402046d69780300000000fffffffe010000000001fffffffe01000000"
)
BROKERS: Final = bytes.fromhex(
    "00060008000000000001310000000001000000000100000000000000240103000000010200004a930a3132372e302e302e31"
    "0a504c41494e544558540000000000000000630200004a9b0a3132372e302e302e310a504c41494e54455854000000000000"
)
TOPIC: Final = bytes.fromhex(
    "000600080000000200013100000000010000000001000000000000002402046d6978f54d89b6bcb24b54a383368c684d76e9"
    "0300000000000000010000000100000000030000000100000063000000000300000001000000630100000000010000000100"
    "000063000000000300000063000000010000000003000000630000000101000003000000010200004a930a3132372e302e30"
    "2e310a504c41494e544558540000000000000000630200004a9b0a3132372e302e302e310a504c41494e5445585400000000"
    "0000"
)
TOPIC_IN_DELETION: Final = bytes.fromhex(
    "000600080000000300013100000000010000000001000000000000002402046d6978f54d89b6bcb24b54a383368c684d76e9"
    "030000000000000001fffffffe000000000300000001000000630000000003000000010000006301000000000100000001ff"
    "fffffe000000000300000063000000010000000003000000630000000101000003000000010200004a930a3132372e302e30"
    "2e310a504c41494e544558540000000000000000630200004a9b0a3132372e302e302e310a504c41494e5445585400000000"
    "0000"
)
_HEADER_SIZE: Final = 12
"""Key, version, correlation id, the client id "1", and no tags."""


def decoded(frame: bytes) -> Any:
    key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
    request, _ = schema(key, version).read_request(frame, _HEADER_SIZE)
    return request


def test_a_request_of_kafka_is_written_as_kafka_wrote_it() -> None:
    for frame in (LEAD_AND_FOLLOW, STOP, DELETE, BROKERS, TOPIC, TOPIC_IN_DELETION):
        key, version = int.from_bytes(frame[:2]), int.from_bytes(frame[2:4])
        written = bytearray()
        request_encoder(key, version)(written, asdict(decoded(frame)))
        assert written == frame[_HEADER_SIZE:]


def test_leader_and_isr_has_the_epochs_and_the_replicas_of_every_partition() -> None:
    request = decoded(LEAD_AND_FOLLOW)
    assert (request.controller_id, request.controller_epoch, request.broker_epoch) == (1, 1, 36)
    (topic,) = request.topic_states
    assert [(state.leader, state.replicas, state.isr, state.is_new) for state in topic.partition_states] == [
        (1, (1, 99), (1, 99), True),
        (99, (99, 1), (99, 1), True),
    ]


def test_update_metadata_has_broker_addresses_and_leader_minus_2_for_deleted_topics() -> None:
    addresses = {
        broker.id: [(each.listener, each.host, each.port) for each in broker.endpoints]
        for broker in decoded(BROKERS).live_brokers
    }
    assert addresses == {1: [("PLAINTEXT", "127.0.0.1", 19091)], 99: [("PLAINTEXT", "127.0.0.1", 19099)]}
    (topic,) = decoded(TOPIC_IN_DELETION).topic_states
    assert {state.leader for state in topic.partition_states} == {-2}


def test_stop_replica_says_whether_the_replica_is_deleted() -> None:
    deletes = [
        {state.delete_partition for state in decoded(frame).topic_states[0].partition_states}
        for frame in (STOP, DELETE)
    ]
    assert deletes == [{False}, {True}]


def test_a_controlled_shutdown_has_one_version() -> None:
    written = bytearray()
    request_encoder(ApiKey.CONTROLLED_SHUTDOWN, 3)(written, {"broker_id": 4, "broker_epoch": 36})
    assert written.hex() == "00000004" + "0000000000000024" + "00"
