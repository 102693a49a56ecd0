from typing import Any

import pytest

from headrace.coordinator.runtime.results import Result
from headrace.coordinator.transactions import machine
from headrace.coordinator.transactions.machine import NeedsProducerIdError, WriteMarkers
from headrace.coordinator.transactions.states import (
    MAX_EPOCH,
    NEVER_MS,
    NOBODY,
    ProducerIdentity,
    TransactionMetadata,
    TransactionState,
)
from headrace.errors import ErrorCode
from headrace.types import TopicPartition

State = TransactionState
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ME = ProducerIdentity(7, 3)
NOW = 50_000
ENDED = (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


def at(state: State, **changes: Any) -> TransactionMetadata:
    began = state not in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT)
    fields: dict[str, Any] = {"partitions": frozenset({T0}) if began else frozenset(), "start_ms": 10 if began else -1}
    return TransactionMetadata(7, 3, 1000, state)._replace(**(fields | changes))


def init(metadata: TransactionMetadata | None, expected: ProducerIdentity | None = None, **more: Any) -> Result[Any]:
    options: dict[str, Any] = {"version": 2, "fresh_id": None, "now_ms": NOW}
    return machine.init_producer_id("id", metadata, expected, 2000, **(options | more))


def end(metadata: TransactionMetadata | None, producer: ProducerIdentity = ME, **more: Any) -> Result[Any]:
    options: dict[str, Any] = {"commit": True, "client_version": 2, "fresh_id": None, "now_ms": NOW}
    return machine.end("id", metadata, producer, **(options | more))


def add(metadata: TransactionMetadata | None, producer: ProducerIdentity = ME, *added: TopicPartition) -> Result[Any]:
    return machine.add_partitions("id", metadata, producer, frozenset(added or (T1,)), client_version=0, now_ms=NOW)


def written(result: Result[Any]) -> TransactionMetadata:
    ((name, metadata),) = result.records
    assert name == "id"
    assert isinstance(metadata, TransactionMetadata)
    return metadata


def code(result: Result[Any]) -> ErrorCode | None:
    return None if result.error is None else result.error.code


# InitProducerId


def test_a_new_id_gets_a_producer_id_at_epoch_0() -> None:
    result = init(None, fresh_id=7)
    assert result.answer == (7, 0)
    assert written(result) == TransactionMetadata(7, 0, 2000, State.EMPTY, last_update_ms=NOW, previous_producer_id=7)


def test_a_new_id_needs_a_fresh_producer_id() -> None:
    with pytest.raises(NeedsProducerIdError):
        init(None)


def test_the_epoch_is_raised() -> None:
    results = {state: init(at(state)) for state in ENDED}
    assert {state: result.answer for state, result in results.items()} == dict.fromkeys(ENDED, (7, 4))
    changes = {state: written(result) for state, result in results.items()}
    assert {state: (changed.state, changed.timeout_ms) for state, changed in changes.items()} == dict.fromkeys(
        ENDED, (State.EMPTY, 2000)
    )


def test_an_exhausted_epoch_gets_a_new_producer_id() -> None:
    result = init(at(State.EMPTY, producer_epoch=MAX_EPOCH - 1), fresh_id=8)
    assert result.answer == (8, 0)
    assert written(result).previous_producer_id == 7


def test_a_repeated_request_gets_the_same_epoch() -> None:
    first = written(init(at(State.EMPTY), ME))
    assert first.identity == (7, 4)
    assert init(first, ME).answer == (7, 4)


def test_a_repeated_request_gets_the_same_new_producer_id() -> None:
    last = ProducerIdentity(7, MAX_EPOCH - 1)
    rotated = written(init(at(State.EMPTY, producer_epoch=last.epoch), last, fresh_id=8))
    assert init(rotated, last).answer == (8, 0)


def test_another_epoch_or_producer_id_is_fenced() -> None:
    assert code(init(at(State.EMPTY), ProducerIdentity(7, 2))) is ErrorCode.producer_fenced
    assert code(init(at(State.EMPTY), ProducerIdentity(6, 3))) is ErrorCode.producer_fenced


def test_an_open_transaction_is_aborted_under_the_next_epoch() -> None:
    for version, last, client_version in ((1, -1, 0), (2, 3, 2)):
        result = init(at(State.ONGOING), version=version)
        assert code(result) is ErrorCode.concurrent_transactions
        changed = written(result)
        assert (changed.state, changed.producer_epoch, changed.last_epoch) == (State.PREPARE_ABORT, 4, last)
        assert result.effects == [WriteMarkers(ProducerIdentity(7, 4), False, frozenset({T0}), client_version)]


def test_init_is_refused_while_a_transaction_ends() -> None:
    assert code(init(at(State.PREPARE_ABORT))) is ErrorCode.concurrent_transactions
    assert code(init(at(State.PREPARE_COMMIT))) is ErrorCode.concurrent_transactions


# AddPartitionsToTxn


def test_the_first_partition_begins_a_transaction() -> None:
    changes = {state: written(add(at(state))) for state in ENDED}
    assert {state: (changed.state, changed.partitions, changed.start_ms) for state, changed in changes.items()} == (
        dict.fromkeys(ENDED, (State.ONGOING, frozenset({T1}), NOW))
    )


def test_a_further_partition_joins_the_transaction() -> None:
    changed = written(add(at(State.ONGOING)))
    assert (changed.partitions, changed.start_ms) == (frozenset({T0, T1}), 10)


def test_a_known_partition_writes_nothing() -> None:
    result = add(at(State.ONGOING), ME, T0)
    assert (result.records, result.error) == ([], None)


def test_invalid_producers_cannot_add_partitions() -> None:
    expected = {
        (None, ME): ErrorCode.invalid_producer_id_mapping,
        (at(State.EMPTY), ProducerIdentity(6, 3)): ErrorCode.invalid_producer_id_mapping,
        (at(State.EMPTY), ProducerIdentity(7, 2)): ErrorCode.producer_fenced,
        (at(State.EMPTY), ProducerIdentity(7, 4)): ErrorCode.producer_fenced,
        (at(State.PREPARE_ABORT), ProducerIdentity(6, 3)): ErrorCode.concurrent_transactions,
    }
    assert {case: code(add(*case)) for case in expected} == expected


def test_partitions_are_verified() -> None:
    expected = {
        (None, ME): ErrorCode.invalid_producer_id_mapping,
        (at(State.ONGOING), ProducerIdentity(6, 3)): ErrorCode.invalid_producer_id_mapping,
        (at(State.ONGOING), ProducerIdentity(7, 2)): ErrorCode.producer_fenced,
        (at(State.PREPARE_COMMIT), ME): ErrorCode.concurrent_transactions,
        (at(State.COMPLETE_COMMIT), ME): ErrorCode.transaction_abortable,
        (at(State.ONGOING), ME): ErrorCode.none,
    }
    assert {case: machine.verify_partitions(*case, [T0])[T0] for case in expected} == expected


# EndTxn


def test_version_1_ends_under_the_same_epoch() -> None:
    for commit, state in ((True, State.PREPARE_COMMIT), (False, State.PREPARE_ABORT)):
        result = end(at(State.ONGOING), commit=commit, client_version=0)
        assert result.answer == NOBODY
        assert (written(result).state, written(result).producer_epoch) == (state, 3)
        assert result.effects == [WriteMarkers(ME, commit, frozenset({T0}), 0)]


def test_version_2_ends_under_the_next_epoch() -> None:
    for commit, state in ((True, State.PREPARE_COMMIT), (False, State.PREPARE_ABORT)):
        result = end(at(State.ONGOING), commit=commit)
        assert result.answer == (7, 4)
        assert (written(result).state, written(result).producer_epoch, written(result).last_epoch) == (state, 4, 3)
        assert result.effects == [WriteMarkers(ProducerIdentity(7, 4), commit, frozenset({T0}), 2)]


def test_version_2_ends_the_last_epoch_under_a_new_producer_id() -> None:
    exhausted = at(State.ONGOING, producer_epoch=MAX_EPOCH - 1)
    result = end(exhausted, ProducerIdentity(7, MAX_EPOCH - 1), fresh_id=8)
    prepared = written(result)
    completed = written(machine.complete("id", prepared, NOW))
    assert (prepared.identity, completed.identity, result.answer) == ((7, MAX_EPOCH), (8, 0), (8, 0))
    assert end(completed, ProducerIdentity(7, MAX_EPOCH - 1)).answer == (8, 0)


def test_a_repeated_end_with_version_2() -> None:
    expected = {
        (State.COMPLETE_COMMIT, True): None,
        (State.COMPLETE_ABORT, False): None,
        (State.COMPLETE_COMMIT, False): ErrorCode.invalid_txn_state,
        (State.COMPLETE_ABORT, True): ErrorCode.invalid_txn_state,
        (State.EMPTY, True): ErrorCode.producer_fenced,
        (State.EMPTY, False): ErrorCode.producer_fenced,
        (State.PREPARE_COMMIT, True): ErrorCode.concurrent_transactions,
    }
    results = {
        (state, commit): end(at(state, client_version=2), ProducerIdentity(7, 2), commit=commit)
        for state, commit in expected
    }
    assert {case: code(result) for case, result in results.items()} == expected
    repeated = results[State.COMPLETE_COMMIT, True], results[State.COMPLETE_ABORT, False]
    assert [(result.answer, result.records) for result in repeated] == [(ME, [])] * 2


def test_version_2_can_abort_but_not_commit_before_the_begin() -> None:
    results = {state: end(at(state), commit=False) for state in ENDED}
    assert {state: result.answer for state, result in results.items()} == dict.fromkeys(ENDED, (7, 4))
    changes = {state: written(result) for state, result in results.items()}
    assert {state: (changed.state, changed.start_ms) for state, changed in changes.items()} == dict.fromkeys(
        ENDED, (State.PREPARE_ABORT, NOW)
    )
    assert {state: code(end(at(state))) for state in ENDED} == dict.fromkeys(ENDED, ErrorCode.invalid_txn_state)


def test_a_repeated_end_with_version_1() -> None:
    expected = {
        (State.EMPTY, True): ErrorCode.invalid_txn_state,
        (State.EMPTY, False): ErrorCode.invalid_txn_state,
        (State.COMPLETE_COMMIT, True): None,
        (State.COMPLETE_COMMIT, False): ErrorCode.invalid_txn_state,
        (State.COMPLETE_ABORT, False): None,
        (State.COMPLETE_ABORT, True): ErrorCode.invalid_txn_state,
        (State.PREPARE_ABORT, False): ErrorCode.concurrent_transactions,
    }
    results = {(state, commit): end(at(state), commit=commit, client_version=0) for state, commit in expected}
    assert {case: code(result) for case, result in results.items()} == expected
    assert not any(result.records for result in results.values())


def test_a_predecessor_of_a_version_1_transaction_is_fenced() -> None:
    successor = at(State.COMPLETE_COMMIT, client_version=0)
    assert code(end(successor, ProducerIdentity(7, 2))) is ErrorCode.producer_fenced


def test_invalid_producers_cannot_end_a_transaction() -> None:
    expected = {
        (None, ME): ErrorCode.invalid_producer_id_mapping,
        (at(State.ONGOING), ProducerIdentity(6, 3)): ErrorCode.invalid_producer_id_mapping,
        (at(State.ONGOING), ProducerIdentity(7, 2)): ErrorCode.producer_fenced,
        (at(State.ONGOING), ProducerIdentity(7, 4)): ErrorCode.producer_fenced,
    }
    for version in (0, 2):
        assert {case: code(end(*case, client_version=version)) for case in expected} == expected, version


def test_markers_complete_a_transaction() -> None:
    for before, after in (
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
        (State.PREPARE_ABORT, State.COMPLETE_ABORT),
    ):
        changed = written(machine.complete("id", at(before), NOW))
        assert (changed.state, changed.partitions, changed.start_ms, changed.identity) == (after, frozenset(), 10, ME)


# Time


def test_a_transaction_times_out_unless_it_is_prepared_or_unlimited() -> None:
    assert not machine.has_timed_out(at(State.ONGOING), 1010)
    assert machine.has_timed_out(at(State.ONGOING), 1011)
    assert not machine.has_timed_out(at(State.PREPARE_COMMIT), 2**50)
    assert not machine.has_timed_out(at(State.ONGOING, timeout_ms=NEVER_MS), 2**50)


def test_a_timeout_raises_the_epoch_once() -> None:
    result = machine.time_out("id", at(State.ONGOING), version=2, fresh_id=None, now_ms=NOW)
    completed = written(machine.complete("id", written(result), NOW))
    assert completed.identity == (7, 4)
    assert init(completed, ME).answer == (7, 4)


def test_idle_ids_expire() -> None:
    idle = at(State.EMPTY, last_update_ms=1000)
    assert not machine.has_expired(idle, 500, 1499)
    assert machine.has_expired(idle, 500, 1500)
    assert not machine.has_expired(at(State.ONGOING, last_update_ms=1000), 500, 1500)
