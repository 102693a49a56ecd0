import json
from pathlib import Path

from headrace.coordinator.groups.records.classic import GroupKey
from headrace.coordinator.groups.records.codec import decode_key
from headrace.coordinator.groups.records.offsets import OffsetKey
from headrace.coordinator.runtime.partitioner import java_hash, partition_for

GOLDEN = Path(__file__).parents[3] / "golden" / "consumer_offsets" / "records.jsonl"


def test_hashes_equal_javas() -> None:
    hashes = {"": 0, "a": 97, "hello": 99162322, "polygenelubricants": -(2**31), "é": 233, "😀": 1772899}
    assert {text: java_hash(text) for text in hashes} == hashes


def test_the_smallest_hash_goes_to_partition_0() -> None:
    assert partition_for("polygenelubricants", 50) == 0


def test_groups_have_the_same_partitions_as_in_kafka() -> None:
    for line in GOLDEN.read_text().splitlines():
        captured = json.loads(line)
        key = decode_key(bytes.fromhex(captured["key"]))
        assert isinstance(key, OffsetKey | GroupKey)
        assert partition_for(key.group_id, 50) == captured["partition"]
