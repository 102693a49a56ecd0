"""Transactions that Kafka left open: what becomes of them."""

import pytest

from headrace.coordinator.transactions.left import Ending, ending_of
from headrace.coordinator.transactions.states import TransactionMetadata, TransactionState

ONGOING = TransactionMetadata(4000, 3, 60_000, TransactionState.ONGOING, start_ms=1000)


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
