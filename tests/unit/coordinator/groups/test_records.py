"""Records of __consumer_offsets, compared with those of Apache Kafka 4.3.1, and all older versions."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.groups.records.classic import GroupMetadata, MemberMetadata, decode_group
from headrace.coordinator.groups.records.codec import (
    UnknownKey,
    decode_key,
    encode,
)
from headrace.coordinator.groups.records.offsets import (
    CommittedOffset,
    OffsetKey,
    decode_offset,
    encode_offset,
)
from headrace.errors import ErrorCode, KafkaError

GOLDEN = Path(__file__).parents[3] / "golden" / "consumer_offsets" / "records.jsonl"
CAPTURED = [json.loads(line) for line in GOLDEN.read_text().splitlines()]


@pytest.mark.parametrize("captured", CAPTURED, ids=lambda captured: captured["key"][-24:])
def test_kafkas_records_are_decoded_and_encoded_to_the_same_bytes(captured: dict[str, str | None]) -> None:
    assert captured["key"] is not None
    key_bytes = bytes.fromhex(captured["key"])
    value_bytes = None if captured["value"] is None else bytes.fromhex(captured["value"])
    key = decode_key(key_bytes)
    assert not isinstance(key, UnknownKey)
    value: CommittedOffset | GroupMetadata | None = None
    if value_bytes is not None:
        value = decode_offset(value_bytes) if isinstance(key, OffsetKey) else decode_group(value_bytes)
    assert encode(key, value) == (key_bytes, value_bytes)


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


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (struct.pack(">hq", 0, 7) + string("m") + struct.pack(">q", 5), CommittedOffset(7, -1, "m", 5)),
        (struct.pack(">hq", 1, 7) + string("m") + struct.pack(">qq", 5, 9), CommittedOffset(7, -1, "m", 5, 9)),
        (struct.pack(">hq", 2, 7) + string("m") + struct.pack(">q", 5), CommittedOffset(7, -1, "m", 5)),
        (struct.pack(">hqi", 3, 7, 4) + string("m") + struct.pack(">q", 5), CommittedOffset(7, 4, "m", 5)),
        (struct.pack(">hqi", 4, 7, 4) + b"\x02m" + struct.pack(">q", 5) + b"\x00", CommittedOffset(7, 4, "m", 5)),
        (
            struct.pack(">hqi", 4, 7, 4) + b"\x02m" + struct.pack(">q", 5) + b"\x01\x09\x02zz",
            CommittedOffset(7, 4, "m", 5),
        ),
    ],
    ids=["v0", "v1", "v2", "v3", "v4", "v4 with an unknown tag"],
)
def test_every_version_of_an_offset_is_decoded(value: bytes, expected: CommittedOffset) -> None:
    assert decode_offset(value) == expected


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_every_non_flexible_version_of_a_group_is_decoded(version: int) -> None:
    value = struct.pack(">h", version) + string("consumer") + struct.pack(">i", 3) + string("range") + string("m")
    if version >= 2:
        value += struct.pack(">q", 99)
    value += struct.pack(">i", 1) + string("m")
    if version >= 3:
        value += string("i")
    value += string("client") + string("/host")
    if version >= 1:
        value += struct.pack(">i", 60)
    value += struct.pack(">i", 30) + struct.pack(">i", 1) + b"s" + struct.pack(">i", 1) + b"a"
    member = MemberMetadata(
        "m", "i" if version >= 3 else None, "client", "/host", 60 if version >= 1 else 30, 30, b"s", b"a"
    )
    assert decode_group(value) == GroupMetadata("consumer", 3, "range", "m", 99 if version >= 2 else -1, (member,))


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


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x01", b"\x00\x01\x00\x09abc", b"\x00\x02\x00\x05ab"])
def test_a_truncated_key_is_corrupt(data: bytes) -> None:
    with pytest.raises(KafkaError) as raised:
        decode_key(data)
    assert raised.value.code is ErrorCode.corrupt_message


@pytest.mark.parametrize("data", [b"", b"\x00\x03\x00", b"\x00\x05" + bytes(40), b"\xff\xff" + bytes(40)])
def test_a_value_that_is_truncated_or_of_an_unknown_version_is_corrupt(data: bytes) -> None:
    for decode in (decode_offset, decode_group):
        with pytest.raises(KafkaError) as raised:
            decode(data)
        assert raised.value.code is ErrorCode.corrupt_message


names = st.text(max_size=300)
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
