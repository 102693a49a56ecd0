"""Transactions that Kafka left open: what its coordinator's records say, and what becomes of them."""

import struct

import pytest

from headrace.coordinator.transactions.left import Ending, ending_of
from headrace.coordinator.transactions.records import TransactionMetadata, TransactionState, decode_transaction
from headrace.errors import ErrorCode, KafkaError

KEY = b"\x00\x00\x00\x02id"
HEAD = struct.pack(">qhib", 4000, 3, 60_000, 1)
TIMES = struct.pack(">qq", 1500, 1000)
PLAIN = b"\x00\x00" + HEAD + b"\x00\x00\x00\x01\x00\x01t" + b"\x00\x00\x00\x02" + struct.pack(">ii", 0, 5) + TIMES
FLEXIBLE = b"\x00\x01" + HEAD + b"\x02\x02t\x03" + struct.pack(">ii", 0, 5) + b"\x00" + TIMES + b"\x01\x02\x02\x00\x02"
ONGOING = TransactionMetadata("id", 4000, 3, 60_000, TransactionState.ONGOING, 1000)


@pytest.mark.parametrize("value", [PLAIN, FLEXIBLE], ids=["version 0", "version 1"])
def test_records_of_both_versions(value: bytes) -> None:
    assert decode_transaction(KEY, value) == ("id", ONGOING)


def test_an_id_without_partitions_and_one_that_is_gone() -> None:
    nothing = b"\x00\x00" + struct.pack(">qhib", 4000, 3, 60_000, 0) + b"\xff\xff\xff\xff" + TIMES
    assert decode_transaction(KEY, nothing) == ("id", ONGOING._replace(state=TransactionState.EMPTY))
    assert decode_transaction(KEY, None) == ("id", None)
    assert decode_transaction(b"\x00\x01", b"") is None


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"\x00\x09", ErrorCode.unsupported_version),
        (PLAIN[:16] + b"\x63" + PLAIN[17:], ErrorCode.unsupported_version),
        (PLAIN[:-1], ErrorCode.corrupt_message),
    ],
)
def test_what_is_not_understood_is_an_error(value: bytes, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        decode_transaction(KEY, value)
    assert caught.value.code is code


@pytest.mark.parametrize(
    ("state", "ending"),
    [
        (TransactionState.PREPARE_COMMIT, Ending(True, 3)),
        (TransactionState.PREPARE_ABORT, Ending(False, 3)),
        (TransactionState.PREPARE_EPOCH_FENCE, Ending(False, 3)),
        (TransactionState.ONGOING, None),
        (TransactionState.COMPLETE_COMMIT, None),
        (TransactionState.EMPTY, None),
    ],
)
def test_what_was_decided_is_carried_out_at_once(state: TransactionState, ending: Ending | None) -> None:
    assert ending_of(ONGOING._replace(state=state), 2000) == ending


def test_one_whose_time_is_up_is_aborted_under_the_next_epoch() -> None:
    assert ending_of(ONGOING, 61_000) is None
    assert ending_of(ONGOING, 61_001) == Ending(False, 4)
    assert ending_of(ONGOING._replace(producer_epoch=2**15 - 1), 61_001) == Ending(False, 2**15 - 1)


def test_one_that_the_coordinator_does_not_know_stays_open() -> None:
    assert ending_of(None, 2**60) is None
