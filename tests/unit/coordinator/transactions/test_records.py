"""Records of `__transaction_state` in Kafka's format."""

import struct

import pytest

from headrace.coordinator.transactions.records import decode_key, decode_value, encode_key, encode_value
from headrace.coordinator.transactions.states import MAX_EPOCH, TransactionMetadata, TransactionState
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition

HEAD = struct.pack(">qhib", 4000, 3, 60_000, 1)
TIMES = struct.pack(">qq", 1500, 1000)
PLAIN = b"\x00\x00" + HEAD + b"\x00\x00\x00\x01\x00\x01t" + b"\x00\x00\x00\x02" + struct.pack(">ii", 0, 5) + TIMES
FLEXIBLE = b"\x00\x01" + HEAD + b"\x02\x02t\x03" + struct.pack(">ii", 0, 5) + b"\x00" + TIMES + b"\x01\x02\x02\x00\x02"
ONGOING = TransactionMetadata(
    4000,
    3,
    60_000,
    TransactionState.ONGOING,
    frozenset({TopicPartition("t", 0), TopicPartition("t", 5)}),
    start_ms=1000,
    last_update_ms=1500,
)


def test_a_key_is_the_transactional_id_and_those_of_other_versions_are_skipped() -> None:
    assert encode_key("id") == b"\x00\x00\x00\x02id"
    assert decode_key(b"\x00\x00\x00\x02id") == "id"
    assert decode_key(b"\x00\x01") is None


def test_both_versions_are_decoded_and_encoded() -> None:
    for value, metadata in ((PLAIN, ONGOING), (FLEXIBLE, ONGOING._replace(client_version=2))):
        assert decode_value("id", value) == metadata
        assert encode_value(metadata, flexible=value is FLEXIBLE) == value


def test_the_partitions_of_an_empty_transaction_are_null() -> None:
    value = b"\x00\x00" + struct.pack(">qhib", 4000, 3, 60_000, 0) + b"\xff\xff\xff\xff" + TIMES
    empty = ONGOING._replace(state=TransactionState.EMPTY, partitions=frozenset())
    assert decode_value("id", value) == empty
    assert encode_value(empty, flexible=False) == value


def test_previous_and_next_producer_ids_are_in_tagged_fields() -> None:
    metadata = ONGOING._replace(previous_producer_id=1, next_producer_id=2, client_version=2)
    assert decode_value("id", encode_value(metadata, flexible=True)) == metadata


def test_many_partitions_are_encoded() -> None:
    metadata = ONGOING._replace(partitions=frozenset(TopicPartition(topic, n) for topic in "ab" for n in range(200)))
    assert decode_value("id", encode_value(metadata, flexible=True)) == metadata


def test_the_last_epoch_of_version_2_is_restored() -> None:
    ended = ONGOING._replace(state=TransactionState.COMPLETE_COMMIT, client_version=2)
    for epoch, previous, last in ((7, 4000, 6), (0, 3999, MAX_EPOCH - 1)):
        same_or_new_id = ended._replace(producer_epoch=epoch, previous_producer_id=previous)
        loaded = decode_value("id", encode_value(same_or_new_id, flexible=True))
        assert loaded == same_or_new_id._replace(last_epoch=last)


def test_a_dead_id_is_decoded_as_a_tombstone() -> None:
    assert decode_value("id", encode_value(ONGOING._replace(state=TransactionState.DEAD), flexible=True)) is None


def test_unknown_and_malformed_values_are_refused() -> None:
    for value, code in (
        (b"\x00\x09", ErrorCode.unsupported_version),
        (PLAIN[:16] + b"\x63" + PLAIN[17:], ErrorCode.unsupported_version),
        (PLAIN[:-1], ErrorCode.corrupt_message),
    ):
        with pytest.raises(KafkaError) as caught:
            pytest.fail(f"{value!r}: {decode_value('id', value)}")
        assert caught.value.code is code, value
