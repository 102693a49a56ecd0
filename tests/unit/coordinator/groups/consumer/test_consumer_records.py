"""Records of consumer groups, compared with those of Kafka 4.3.1."""

import json
from pathlib import Path

import pytest

from headrace.coordinator.groups.consumer.group import ConsumerGroup
from headrace.coordinator.groups.records.consumer import (
    ConsumerGroupKey,
    CurrentAssignment,
    CurrentAssignmentKey,
    MemberKey,
    MemberState,
    PartitionMetadataKey,
    decode_consumer_key,
    decode_value,
    encode_key,
    encode_value,
)
from headrace.coordinator.groups.settings import GroupSettings
from headrace.errors import ErrorCode, KafkaError
from tests.unit.coordinator.fake_topics import FakeTopics

GOLDEN = Path(__file__).parents[4] / "golden" / "consumer_offsets" / "consumer_protocol.jsonl"
RECORDS = [
    (bytes.fromhex(record["key"]), None if record["value"] is None else bytes.fromhex(record["value"]))
    for record in map(json.loads, GOLDEN.read_text().splitlines())
]


def test_kafkas_records_are_decoded_and_encoded_to_the_same_bytes() -> None:
    encoded = []
    for raw_key, raw_value in RECORDS:
        key = decode_consumer_key(raw_key)
        assert key is not None
        encoded.append((encode_key(key), None if raw_value is None else encode_value(decode_value(key, raw_value))))
    assert encoded == RECORDS


def test_kafkas_records_are_replayed() -> None:
    groups: dict[str, ConsumerGroup] = {}
    for raw_key, raw_value in RECORDS:
        key = decode_consumer_key(raw_key)
        assert key is not None
        group = groups.setdefault(key.group_id, ConsumerGroup(key.group_id, GroupSettings(), FakeTopics()))
        group.known.replay(key, None if raw_value is None else decode_value(key, raw_value))
    (static,) = groups["cgp-static"].known.members.values()
    assert (static.instance_id, static.epoch, static.assignor, len(static.assigned)) == ("inst-1", -2, "range", 4)
    for name in ("cgp-two", "cgp-regex"):
        groups[name].check()
        assert groups[name].is_empty


def test_a_member_record_without_partition_epochs_is_decoded() -> None:
    value = bytes.fromhex("000000000005000000040002" + "07" * 16 + "0200000003000100")
    decoded = decode_value(CurrentAssignmentKey("g", "m"), value)
    assert isinstance(decoded, CurrentAssignment)
    assert list(decoded.assigned.values()) == [5]


def test_a_member_state_of_a_newer_kafka_is_unknown() -> None:
    value = bytes.fromhex("0000000000050000000409010100")
    decoded = decode_value(CurrentAssignmentKey("g", "m"), value)
    assert isinstance(decoded, CurrentAssignment)
    assert decoded.state is MemberState.UNKNOWN


def test_partition_metadata_of_an_older_kafka_is_removed_with_the_group() -> None:
    group = ConsumerGroup("g", GroupSettings(), FakeTopics())
    group.known.replay_partition_metadata()
    assert (PartitionMetadataKey("g"), None) in group.tombstones()


def test_an_invalid_value_is_corrupt() -> None:
    for data in (b"\x00\x00\x00", b"\x00\x07\x00\x00\x00\x01\x00"):
        with pytest.raises(KafkaError) as raised:
            pytest.fail(f"{data!r}: {decode_value(ConsumerGroupKey('g'), data)}")
        assert raised.value.code is ErrorCode.corrupt_message, data


def test_keys_of_other_protocols_are_not_consumer_keys() -> None:
    assert decode_consumer_key(b"\x00\x0b\x00\x01g") is None
    assert decode_consumer_key(encode_key(MemberKey("g", "m"))) == MemberKey("g", "m")
