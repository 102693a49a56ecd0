"""Records of __consumer_offsets, compared with those of Apache Kafka 4.3.1, and all older versions."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.groups.records.classic import GroupMetadata, MemberMetadata, decode_group
from headrace.coordinator.groups.records.codec import UnknownKey, decode_key, encode
from headrace.coordinator.groups.records.offsets import CommittedOffset, OffsetKey, decode_offset, encode_offset
from headrace.errors import ErrorCode, KafkaError

GOLDEN = Path(__file__).parents[3] / "golden" / "consumer_offsets" / "records.jsonl"
CAPTURED = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


def test_kafkas_records_are_decoded_and_encoded_to_the_same_bytes() -> None:
    records = [[raw and bytes.fromhex(raw) for raw in (captured["key"], captured["value"])] for captured in CAPTURED]
    encoded = []
    for raw_key, raw_value in records:
        key = decode_key(raw_key)
        assert not isinstance(key, UnknownKey)
        decode = decode_offset if isinstance(key, OffsetKey) else decode_group
        encoded.append([*encode(key, None if raw_value is None else decode(raw_value))])
    assert encoded == records


def test_offsets_that_kafka_wrote_are_decoded() -> None:
    committed = {}
    for captured in CAPTURED:
        key = decode_key(bytes.fromhex(captured["key"]))
        if isinstance(key, OffsetKey) and captured["value"] is not None:
            committed[key.group_id, key.partition] = decode_offset(bytes.fromhex(captured["value"]))
    simple = committed["hrgroups-cap-simple", 2]
    assert (simple.offset, simple.leader_epoch, simple.metadata.rstrip("\0")) == (9, 3, "grüße ✓")
    assert len(simple.topic_id) == 16
    assert committed["hrgroups-cap-simple", 0].offset == 42


def string(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def test_every_version_of_an_offset_is_decoded() -> None:
    flexible = struct.pack(">hqi", 4, 7, 4) + b"\x02m" + struct.pack(">q", 5)
    expected = {
        struct.pack(">hq", 0, 7) + string("m") + struct.pack(">q", 5): CommittedOffset(7, -1, "m", 5),
        struct.pack(">hq", 1, 7) + string("m") + struct.pack(">qq", 5, 9): CommittedOffset(7, -1, "m", 5, 9),
        struct.pack(">hq", 2, 7) + string("m") + struct.pack(">q", 5): CommittedOffset(7, -1, "m", 5),
        struct.pack(">hqi", 3, 7, 4) + string("m") + struct.pack(">q", 5): CommittedOffset(7, 4, "m", 5),
        flexible + b"\x00": CommittedOffset(7, 4, "m", 5),
        flexible + b"\x01\x09\x02zz": CommittedOffset(7, 4, "m", 5),
    }
    assert {value: decode_offset(value) for value in expected} == expected


def group_of_version(version: int) -> bytes:
    """Return the bytes of a group that has all fields of a version without tagged fields."""
    value = struct.pack(">h", version) + string("consumer") + struct.pack(">i", 3) + string("range") + string("m")
    if version >= 2:
        value += struct.pack(">q", 99)
    value += struct.pack(">i", 1) + string("m")
    if version >= 3:
        value += string("i")
    value += string("client") + string("/host")
    if version >= 1:
        value += struct.pack(">i", 60)
    return value + struct.pack(">i", 30) + struct.pack(">i", 1) + b"s" + struct.pack(">i", 1) + b"a"


def test_every_non_flexible_version_of_a_group_is_decoded() -> None:
    latest = MemberMetadata("m", "i", "client", "/host", 60, 30, b"s", b"a")
    second = latest._replace(instance_id=None)
    first = second._replace(rebalance_timeout_ms=30)
    assert [decode_group(group_of_version(version)) for version in range(4)] == [
        GroupMetadata("consumer", 3, "range", "m", -1, (first,)),
        GroupMetadata("consumer", 3, "range", "m", -1, (second,)),
        GroupMetadata("consumer", 3, "range", "m", 99, (second,)),
        GroupMetadata("consumer", 3, "range", "m", 99, (latest,)),
    ]


def test_a_flexible_group_is_decoded() -> None:
    value = struct.pack(">h", 4) + b"\x02c" + struct.pack(">i", 3) + b"\x00" + b"\x00" + struct.pack(">q", 9) + b"\x02"
    value += b"\x02m\x00\x02c\x02h" + struct.pack(">ii", 60, 30) + b"\x02s\x02a" + b"\x00" + b"\x00"
    assert decode_group(value) == GroupMetadata(
        "c", 3, None, None, 9, (MemberMetadata("m", None, "c", "h", 60, 30, b"s", b"a"),)
    )


def test_an_expire_timestamp_is_preserved() -> None:
    value = CommittedOffset(7, -1, "m", 5, expire_timestamp=9)
    assert decode_offset(encode_offset(value)) == value


def test_keys_of_share_groups_are_unknown() -> None:
    assert decode_key(struct.pack(">h", 9) + b"whatever") == UnknownKey(9)


def error_of(decode: Callable[[bytes], object], data: bytes) -> ErrorCode | None:
    try:
        decode(data)
    except KafkaError as error:
        return error.code
    return None


def test_truncated_keys_and_values_and_unknown_versions_are_corrupt() -> None:
    keys = (b"", b"\x00", b"\x00\x01", b"\x00\x01\x00\x09abc", b"\x00\x02\x00\x05ab")
    values = (b"", b"\x00\x03\x00", b"\x00\x05" + bytes(40), b"\xff\xff" + bytes(40))
    cases: list[tuple[Callable[[bytes], object], bytes]] = [(decode_key, key) for key in keys]
    cases += [(decode, value) for value in values for decode in (decode_offset, decode_group)]
    assert {case: error_of(*case) for case in cases} == dict.fromkeys(cases, ErrorCode.corrupt_message)


names = st.text(max_size=20) | st.just("é" * 300)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


@given(names, names, int32, int64, int32, names, int64, st.sampled_from([b"", bytes(range(16))]))
def test_encoded_offsets_can_be_decoded(
    group_id: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, timestamp: int, topic_id: bytes
) -> None:
    key = OffsetKey(group_id, topic, partition)
    value = CommittedOffset(offset, epoch, metadata, timestamp, topic_id=topic_id)
    key_bytes, value_bytes = encode(key, value)
    assert value_bytes is not None
    assert (decode_key(key_bytes), decode_offset(value_bytes)) == (key, value)


@given(st.binary(max_size=200))
def test_random_bytes_cause_no_other_errors(data: bytes) -> None:
    for decode in (decode_key, decode_offset, decode_group):
        try:
            decode(data)
        except (KafkaError, UnicodeDecodeError):
            continue
