from headrace.wire.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from headrace.wire.control import Marker, coordinator_epoch_of, encode_marker, marker_batch, marker_of
from headrace.wire.records import RecordData, build_batch


def test_a_marker_is_encoded_as_by_kafka_and_decoded() -> None:
    for marker, key in ((Marker.ABORT, b"\0\0\0\0"), (Marker.COMMIT, b"\0\0\0\1")):
        encoded = encode_marker(marker, 7)
        assert encoded == (key, b"\0\0\0\0\0\7")
        assert (marker_of(encoded[0]), coordinator_epoch_of(encoded[1])) == (marker, 7)


def test_the_batch_of_a_marker_has_the_general_layout() -> None:
    timestamp_ms = 1_700_000_000_123
    for marker in Marker:
        assert marker_batch(marker, 7, 2**40, 2**15 - 1, timestamp_ms) == build_batch(
            [RecordData(*encode_marker(marker, 7), timestamp_ms)],
            producer_id=2**40,
            producer_epoch=2**15 - 1,
            attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG,
        )


def test_other_control_records_are_not_markers() -> None:
    keys = (None, b"", b"\0\0\0", b"\0\0\0\2", b"\0\0\xff\xff")
    assert [marker_of(key) for key in keys] == [None] * 5


def test_later_versions_of_a_marker_are_read_by_their_first_fields() -> None:
    assert marker_of(b"\0\1\0\1more") is Marker.COMMIT
    assert coordinator_epoch_of(b"\0\1\0\0\0\7\0") == 7


def test_a_value_without_an_epoch_has_epoch_minus_one() -> None:
    assert [coordinator_epoch_of(value) for value in (None, b"", b"\0\0\0\0\0")] == [-1] * 3
