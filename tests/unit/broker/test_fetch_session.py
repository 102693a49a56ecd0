"""Incremental fetch sessions (KIP-227)."""

from random import Random

import pytest

from headrace.broker.fetch_session import (
    EVICTABLE_AFTER_MS,
    NO_SESSION,
    FetchSession,
    FetchSessions,
)
from headrace.errors import ErrorCode, KafkaError


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(2, Random(1))


def begin(sessions: FetchSessions, session_id: int, epoch: int, now_ms: int = 0) -> FetchSession:
    return sessions.begin(session_id, epoch, uses_topic_ids=False, now_ms=now_ms)[0]


def refused(sessions: FetchSessions, session_id: int, epoch: int, *, uses_topic_ids: bool = False) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        sessions.begin(session_id, epoch, uses_topic_ids=uses_topic_ids, now_ms=0)
    return caught.value.code


def put(session: FetchSession, *indexes: int) -> None:
    for index in indexes:
        session.want("t", index)


def test_a_session_continues_with_the_next_epoch(sessions: FetchSessions) -> None:
    session = begin(sessions, 0, 0)

    assert begin(sessions, session.session_id, 1) is session
    assert begin(sessions, session.session_id, 2) is session
    assert refused(sessions, session.session_id, 2) is ErrorCode.invalid_fetch_session_epoch


def test_a_fetch_with_the_final_epoch_ends_its_session(sessions: FetchSessions) -> None:
    session = begin(sessions, 0, 0)

    assert not begin(sessions, session.session_id, -1).is_kept
    assert refused(sessions, session.session_id, 1) is ErrorCode.fetch_session_id_not_found


def test_topic_names_and_ids_do_not_mix_in_a_session(sessions: FetchSessions) -> None:
    session = begin(sessions, 0, 0)

    assert refused(sessions, session.session_id, 1, uses_topic_ids=True) is ErrorCode.fetch_session_topic_id_error


def test_a_full_cache_evicts_only_idle_sessions(sessions: FetchSessions) -> None:
    first, second = begin(sessions, 0, 0), begin(sessions, 0, 0)
    assert not begin(sessions, 0, 0).is_kept

    begin(sessions, first.session_id, 1, now_ms=EVICTABLE_AFTER_MS - 1)
    assert begin(sessions, 0, 0, now_ms=EVICTABLE_AFTER_MS).is_kept

    assert refused(sessions, second.session_id, 1) is ErrorCode.fetch_session_id_not_found
    assert begin(sessions, first.session_id, 2) is first
    assert len(sessions) == 2


def test_a_followers_session_replaces_the_consumers_that_was_used_least_recently(sessions: FetchSessions) -> None:
    first, second = begin(sessions, 0, 0), begin(sessions, 0, 0)
    begin(sessions, first.session_id, 1)
    followers = [sessions.begin(0, 0, uses_topic_ids=False, now_ms=0, is_follower=True)[0] for _ in range(3)]
    assert [session.is_kept for session in followers] == [True, True, False]
    assert [refused(sessions, session.session_id, 2) for session in (second, first)] == [
        ErrorCode.fetch_session_id_not_found,
        ErrorCode.fetch_session_id_not_found,
    ]


def test_the_epoch_wraps_around_to_1(sessions: FetchSessions) -> None:
    session = begin(sessions, 0, 0)
    session.epoch = 2**31 - 1

    begin(sessions, session.session_id, 2**31 - 1)

    assert session.epoch == 1


def test_partitions_are_added_changed_and_forgotten(sessions: FetchSessions) -> None:
    session = begin(sessions, 0, 0)
    put(session, 0, 1)
    session.partitions["t", 0].last_high_watermark = 9

    session.want("t", 0).fetch_offset = 5
    session.forget([("t", 1), ("unknown", 3)])

    assert list(session.partitions) == [("t", 0)]
    partition = session.partitions["t", 0]
    assert (partition.fetch_offset, partition.last_high_watermark) == (5, 9)


def test_a_served_partition_moves_to_the_end(sessions: FetchSessions) -> None:
    session = begin(sessions, 0, 0)
    put(session, *range(3))

    session.served(session.partitions["t", 0])

    assert [index for _, index in session.partitions] == [1, 2, 0]


def test_the_partitions_of_all_sessions_are_limited(sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.fetch_session.MAX_PARTITIONS", 10)
    first, second = begin(sessions, 0, 0), begin(sessions, 0, 0)
    for session, count in (first, 6), (second, 5):
        put(session, *range(count))
        sessions.changed(session)

    assert first.is_kept
    assert not second.is_kept
    assert len(sessions) == 1

    third = begin(sessions, 0, 0)
    put(third, *range(4))
    sessions.changed(third)
    assert third.is_kept
    assert begin(sessions, 0, 0).session_id == NO_SESSION
    assert begin(sessions, 0, 0, EVICTABLE_AFTER_MS).is_kept
    assert refused(sessions, first.session_id, 1) is ErrorCode.fetch_session_id_not_found


def test_forgotten_partitions_make_room(sessions: FetchSessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.fetch_session.MAX_PARTITIONS", 10)
    session = begin(sessions, 0, 0)
    put(session, *range(10))
    sessions.changed(session)
    session.forget(("t", index) for index in range(9))
    sessions.changed(session)

    assert begin(sessions, 0, 0).is_kept
    session.forget([("t", 9)])
    sessions.changed(session)
    assert not session.is_kept
