from headrace.errors import ErrorCode
from headrace.replication.following.fetch_session import FetchSession, SessionRequest

A, B = (b"a" * 16, 0), (b"a" * 16, 1)


def begun() -> FetchSession:
    """A session of both partitions, with id 5."""
    session = FetchSession()
    session.want(A, b"a0")
    session.want(B, b"b0")
    session.next_request()
    assert session.answered(5, ErrorCode.none)
    return session


def test_later_requests_have_only_changed_partitions_and_the_next_epoch() -> None:
    session = begun()
    session.want(A, b"a1")
    session.want(B, b"b0")

    assert session.next_request() == SessionRequest((5, 1), {A: b"a1"}, [])
    session.answered(5, ErrorCode.none)
    assert session.next_request() == SessionRequest((5, 2), {}, [])


def test_a_partition_that_is_fetched_no_more_is_forgotten_once() -> None:
    session = begun()
    session.leave(A)

    assert session.next_request().forgotten == [A]
    session.answered(5, ErrorCode.none)
    assert session.next_request().forgotten == []


def test_a_partition_that_left_and_came_back_is_in_the_session() -> None:
    session = begun()
    session.leave(A)
    session.want(A, b"a0")

    assert session.next_request() == SessionRequest((5, 1), {}, [])


def test_after_a_lost_answer_a_new_session_replaces_the_old_one() -> None:
    session = begun()
    session.next_request()
    session.failed()

    assert session.next_request() == SessionRequest((5, 0), {A: b"a0", B: b"b0"}, [])


def test_an_unknown_session_is_begun_again() -> None:
    session = begun()
    session.next_request()

    assert not session.answered(0, ErrorCode.fetch_session_id_not_found)
    assert session.next_request() == SessionRequest((0, 0), {A: b"a0", B: b"b0"}, [])


def test_without_a_session_every_request_has_all_partitions() -> None:
    session = FetchSession()
    session.want(A, b"a0")
    for _ in range(2):
        assert session.next_request() == SessionRequest((0, 0), {A: b"a0"}, [])
        session.answered(0, ErrorCode.none)


def test_a_session_epoch_after_the_largest_is_one() -> None:
    session = begun()
    session._epoch = 2**31 - 1
    session.next_request()
    session.answered(5, ErrorCode.none)

    assert session.next_request().session == (5, 1)


def test_a_session_without_partitions_asks_once_more_to_forget_them() -> None:
    session = begun()
    session.leave(A)
    session.leave(B)
    assert not session.is_empty

    session.next_request()
    session.answered(5, ErrorCode.none)

    assert session.is_empty
