"""How transactions end that Kafka left open, since nobody can end them here: as its coordinator had decided, or would
have once their time was up. Pure.
"""

from typing import Final, NamedTuple

from headrace.coordinator.transactions.states import TransactionMetadata, TransactionState

_MAX_EPOCH: Final = 2**15 - 1
_TO_ABORT: Final = (TransactionState.PREPARE_ABORT, TransactionState.PREPARE_EPOCH_FENCE)


class Ending(NamedTuple):
    """The marker to write, under `producer_epoch`."""

    commit: bool
    producer_epoch: int


def ending_of(transaction: TransactionMetadata | None, now_ms: int) -> Ending | None:
    """What becomes of an open transaction of a producer, by what the coordinator's log says; None while it may go on.

    One that the coordinator does not know, or takes for ended, stays open: nobody can tell how it was meant.
    """
    if transaction is None:
        return None
    state, epoch = transaction.state, transaction.producer_epoch
    if state is TransactionState.PREPARE_COMMIT:
        return Ending(True, epoch)
    if state in _TO_ABORT:
        return Ending(False, epoch)
    if state is TransactionState.ONGOING and transaction.start_ms + transaction.timeout_ms < now_ms:
        # under the next epoch, which fences the producer should it ever come back
        return Ending(False, min(epoch + 1, _MAX_EPOCH))
    return None
