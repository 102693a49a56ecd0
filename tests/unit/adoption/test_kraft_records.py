"""Replaying the records of a KRaft metadata log."""

import struct
import uuid

import pytest

from headrace.adoption.kafka_cluster import KafkaPartition
from headrace.adoption.kraft_records import replay
from headrace.cluster.image import TOPIC_CONFIG, ConfigResource
from headrace.errors import ErrorCode, KafkaError

ID = uuid.UUID(int=77)
DIRECTORY = uuid.UUID(int=88)


def string(text: str) -> bytes:
    return bytes([len(text) + 1]) + text.encode()


def ints(*values: int) -> bytes:
    return bytes([len(values) + 1]) + struct.pack(f">{len(values)}i", *values)


def topic(name: str = "t") -> bytes:
    return b"\x01\x02\x00" + string(name) + ID.bytes + b"\x00"


def partition(index: int, *replicas: int, epoch: int = 0) -> bytes:
    directories = bytes([len(replicas) + 1]) + DIRECTORY.bytes * len(replicas)
    head = b"\x01\x03\x01" + struct.pack(">i", index) + ID.bytes + ints(*replicas) + ints(*replicas) + b"\x01\x01"
    return head + struct.pack(">iii", replicas[0], epoch, 0) + directories + b"\x00"


def change(index: int, **tags: bytes) -> bytes:
    numbers = {"isr": 0, "leader": 1, "replicas": 2, "directories": 8}
    fields = b"".join(bytes([numbers[name], len(data)]) + data for name, data in tags.items())
    return b"\x01\x05\x01" + struct.pack(">i", index) + ID.bytes + bytes([len(tags)]) + fields


def config(key: str, value: str | None, name: str = "t") -> bytes:
    return b"\x01\x04\x00\x02" + string(name) + string(key) + (b"\x00" if value is None else string(value)) + b"\x00"


REMOVE = b"\x01\x09\x00" + ID.bytes + b"\x00"
BEGIN, END, ABORT = b"\x01\x17\x00\x00", b"\x01\x18\x00\x00", b"\x01\x19\x00\x00"


def test_every_change_of_leader_raises_the_leader_epoch() -> None:
    records = [
        topic(),
        partition(0, 7, epoch=2),
        change(0, leader=struct.pack(">i", -1)),
        change(0, leader=struct.pack(">i", 7)),
        change(0, leader=struct.pack(">i", -2)),
        change(0, isr=ints(7)),
    ]
    assert replay(records).partitions[ID][0] == KafkaPartition((7,), 4, (DIRECTORY,))


def test_a_change_moves_replicas_and_their_directories() -> None:
    other = uuid.UUID(int=99)
    moved = change(0, replicas=ints(8, 7), directories=b"\x03" + other.bytes + DIRECTORY.bytes)
    cluster = replay([topic(), partition(0, 7), moved])
    assert cluster.partitions[ID][0] == KafkaPartition((8, 7), 0, (other, DIRECTORY))


def test_a_later_value_replaces_a_setting_and_null_removes_it() -> None:
    cluster = replay([topic(), config("a", "1"), config("b", "1"), config("a", "2"), config("b", None)])
    assert cluster.configs == {ConfigResource(TOPIC_CONFIG, "t"): {"a": "2"}}


def test_only_the_id_of_a_removed_topic_is_kept() -> None:
    cluster = replay([topic(), partition(0, 7), config("a", "1"), REMOVE])
    assert (cluster.topics, cluster.partitions, cluster.configs, cluster.removed) == ({}, {}, {}, {ID})


def test_only_ended_transactions_are_replayed() -> None:
    assert replay([BEGIN, topic(), END]).topics == {"t": ID}
    assert replay([BEGIN, topic(), ABORT]).topics == {}
    assert replay([BEGIN, topic()]).topics == {}


def quota(*names: tuple[str, str | None], key: str = "rate", is_removed: bool = False) -> bytes:
    entity = b"".join(string(kind) + (b"\x00" if name is None else string(name)) + b"\x00" for kind, name in names)
    fields = bytes([len(names) + 1]) + entity + string(key) + struct.pack(">d", 0.0 if is_removed else 7.0)
    return b"\x01\x0e\x00" + fields + bytes([is_removed]) + b"\x00"


def token(name: str) -> bytes:
    people = string("User:o") + string("User:r") + b"\x02" + string("User:w")
    return b"\x01\x0a\x00" + people + struct.pack(">qqq", 1, 2, 3) + string(name) + b"\x00"


def acl(number: int) -> bytes:
    return b"\x01\x12\x00" + uuid.UUID(int=number).bytes + b"the rest"


def scram(user: str, mechanism: int) -> bytes:
    return b"\x01\x0b\x00" + string(user) + bytes([mechanism]) + b"the rest"


@pytest.mark.parametrize(
    ("kind", "records", "removal"),
    [
        ("ACL", [acl(1), acl(2), acl(3)], b"\x01\x13\x00" + uuid.UUID(int=2).bytes + b"\x00"),
        (
            "SCRAM credential",
            [scram("u", 1), scram("u", 2), scram("v", 1)],
            b"\x01\x16\x00" + string("u") + b"\x02\x00",
        ),
        ("delegation token", [token("x"), token("y"), token("z")], b"\x01\x1a\x00" + string("y") + b"\x00"),
        (
            "client quota",
            [
                quota(("user", "a"), ("client-id", None)),
                quota(("user", "a"), ("client-id", None), key="other"),
                quota(("user", "a"), ("client-id", "")),
            ],
            quota(("client-id", None), ("user", "a"), key="other", is_removed=True),
        ),
    ],
)
def test_records_that_cannot_be_adopted_are_counted(kind: str, records: list[bytes], removal: bytes) -> None:
    def left(*more: bytes) -> set[str]:
        return replay([*records, *more]).left_behind[kind]

    assert len(left()) == 3
    assert left(*records) == left()
    assert left(removal) == replay([records[0], records[2]]).left_behind[kind]
    assert left(removal, records[1]) == left()


def test_records_of_an_unknown_layout_are_counted_too() -> None:
    assert len(replay([b"\x01\x12\x07new", b"\x01\x12\x07newer", b"\x01\x0b\x07\x02\xff"]).left_behind["ACL"]) == 2


def test_producer_ids_and_the_metadata_version_are_read() -> None:
    features = b"\x01\x0c\x00" + string("metadata.version") + struct.pack(">h", 30) + b"\x00"
    ids = b"\x01\x0f\x00" + struct.pack(">iqq", 7, 1, 5000) + b"\x00"
    cluster = replay([features, ids])
    assert cluster.next_producer_id == 5000
    assert cluster.source == "Kafka's metadata log (metadata.version 30)"


def test_unknown_and_malformed_records_are_refused() -> None:
    expected = {
        b"\x02\x02\x00": ErrorCode.unsupported_version,
        b"\x01\x7b\x00": ErrorCode.unsupported_version,
        b"\x01\x03\x09": ErrorCode.unsupported_version,
        b"\x01\x02\x00\x09t": ErrorCode.corrupt_message,
        REMOVE: ErrorCode.corrupt_message,
        b"": ErrorCode.corrupt_message,
    }
    for record, code in expected.items():
        with pytest.raises(KafkaError) as caught:
            pytest.fail(f"{record!r}: {replay([record])}")
        assert caught.value.code is code, record
