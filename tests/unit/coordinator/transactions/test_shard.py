from headrace.coordinator.transactions.machine import WriteMarkers
from headrace.coordinator.transactions.shard import TransactionShard
from headrace.coordinator.transactions.states import ProducerIdentity, TransactionMetadata, TransactionState
from headrace.types import TopicPartition

PARTITIONS = frozenset({TopicPartition("t", 0)})
ONGOING = TransactionMetadata(7, 3, 1000, TransactionState.ONGOING, PARTITIONS, 10, 20, 2, -1, 7)
PREPARED = ONGOING._replace(state=TransactionState.PREPARE_COMMIT, producer_epoch=4, last_epoch=3)


def shard_with(*changes: TransactionMetadata | None) -> TransactionShard:
    shard = TransactionShard(lambda: 2)
    for change in changes:
        shard.replay("id", change, 0)
    return shard


def test_a_loaded_id_equals_the_written_one() -> None:
    written, loaded = shard_with(PREPARED), shard_with()
    key, value = written.encode("id", PREPARED)
    assert loaded.replay_bytes(key, value, 0, now_ms=0, producer_id=-1)
    assert loaded.ids == written.ids


def test_a_tombstone_removes_the_id() -> None:
    shard = shard_with(ONGOING)
    key, _ = shard.encode("id", None)
    shard.replay_bytes(key, None, 0, now_ms=0, producer_id=-1)
    assert (shard.ids, shard.ongoing) == ({}, {})


def test_a_record_of_another_kind_is_skipped() -> None:
    assert not shard_with().replay_bytes(b"\x00\x07", b"", 0, now_ms=0, producer_id=-1)


def test_only_open_transactions_time_out() -> None:
    assert list(shard_with(ONGOING).timed_out(1011)) == ["id"]
    assert list(shard_with(ONGOING, PREPARED).timed_out(1011)) == []


def test_loading_a_prepared_transaction_writes_its_markers() -> None:
    assert list(shard_with(ONGOING).loaded(0)) == []
    expected = WriteMarkers(ProducerIdentity(7, 4), True, PARTITIONS, 2)
    assert list(shard_with(PREPARED).loaded(0)) == [("id", [expected])]


def test_idle_ids_expire() -> None:
    ended = PREPARED._replace(state=TransactionState.COMPLETE_COMMIT)
    assert list(shard_with(ended).expired(100, 120)) == ["id"]
    assert list(shard_with(ended).expired(100, 119)) == [None]
