from collections.abc import Sequence

from headrace.errors import ErrorCode
from headrace.replication.following.fetch_session import SessionRequest
from headrace.replication.following.follower_state import (
    Action,
    Append,
    Fail,
    FollowerState,
    Following,
    LogEnd,
    Reset,
    Retry,
    Truncate,
    truncation_offset,
)
from headrace.types import TopicPartition
from headrace.wire.fetched import ENTRY, FetchedPartition, FetchReply

TOPIC_ID = b"t" * 16
FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
BACKOFF_S = 1.0


class Driver:
    """A fetcher's state, and a leader that answers by hand."""

    def __init__(self) -> None:
        self.state = FollowerState(partition_max_bytes=1000, backoff_s=BACKOFF_S)
        self.now = 50.0

    def follow(self, topic_partition: TopicPartition = FIRST, *, offset: int = 10, epoch: int = 3) -> Following:
        return self.state.follow(topic_partition, TOPIC_ID, epoch, LogEnd(offset, 2, 0))

    def request(self) -> SessionRequest | None:
        return self.state.request(self.now, None)

    def asked(self) -> list[tuple[int, int, int, int]]:
        """Send a request, and return its partitions with leader epoch, offset and last epoch."""
        request = self.request()
        assert request is not None
        return [ENTRY.unpack(entry)[:4] for entry in request.entries.values()]

    def answer(self, *partitions: FetchedPartition, error_code: int = 0) -> Sequence[Action]:
        return self.state.answered(FetchReply(error_code, 5, list(partitions)), self.now)


def asking() -> tuple[Driver, Following]:
    """Return a driver that has sent its first request, for one partition."""
    driver = Driver()
    following = driver.follow()
    driver.request()
    return driver, following


def fetched(
    partition: int = 0,
    *,
    error_code: int = 0,
    high_watermark: int = 20,
    diverging: tuple[int, int] | None = None,
) -> FetchedPartition:
    return FetchedPartition((TOPIC_ID, partition), error_code, high_watermark, 0, diverging, memoryview(b""))


def test_records_are_appended_and_the_next_request_continues_after_them() -> None:
    driver, following = asking()

    actions = driver.answer(fetched())
    assert actions == [Append(following, fetched())]
    driver.state.appended(following, LogEnd(15, 3, 0), high_watermark=20)

    assert driver.asked() == [(0, 3, 15, 3)]
    assert following.lag == 5


def test_a_diverging_epoch_truncates_and_nothing_is_appended() -> None:
    driver, following = asking()

    assert driver.answer(fetched(diverging=(1, 7))) == [Truncate(following, 1, 7)]
    driver.state.moved(following, LogEnd(7, 1, 0))

    assert driver.asked() == [(0, 3, 7, 1)]


def test_an_offset_out_of_range_resets_the_partition() -> None:
    driver, following = asking()

    assert driver.answer(fetched(error_code=ErrorCode.offset_out_of_range)) == [Reset(following)]


def test_a_fenced_partition_waits_for_its_new_epoch() -> None:
    driver, _ = asking()

    (action,) = driver.answer(fetched(error_code=ErrorCode.fenced_leader_epoch))

    assert isinstance(action, Fail)
    assert driver.state.get(FIRST) is None
    driver.follow(epoch=4)
    assert driver.asked() == [(0, 4, 10, 2)]


def test_another_error_delays_the_partition() -> None:
    for code, is_expected, wait_s in (
        (ErrorCode.not_leader_or_follower, True, 0.025),
        (ErrorCode.unknown_leader_epoch, True, 0.025),
        (ErrorCode.unknown_topic_id, True, 0.025),
        (ErrorCode.kafka_storage_error, False, BACKOFF_S),
    ):
        driver, following = asking()

        assert driver.answer(fetched(error_code=code)) == [Retry(following, code.name, is_expected, wait_s)]
        assert driver.asked() == []
        driver.answer()
        driver.now += wait_s

        assert driver.asked() == [(0, 3, 10, 2)]


def test_a_leader_that_does_not_know_its_epoch_yet_is_asked_again_soon_and_then_less_often() -> None:
    driver = Driver()
    following = driver.follow()

    def wait_s() -> float:
        """Return the wait after another error."""
        driver.request()
        (action,) = driver.answer(fetched(error_code=ErrorCode.unknown_leader_epoch))
        assert isinstance(action, Retry)
        driver.now += action.wait_s
        return action.wait_s

    assert [wait_s() for _ in range(8)] == [0.025, 0.05, 0.1, 0.2, 0.4, 0.8, BACKOFF_S, BACKOFF_S]
    driver.request()
    driver.answer(fetched())
    driver.state.appended(following, following.end, high_watermark=20)
    assert wait_s() == 0.025


def test_a_delayed_partition_does_not_delay_others() -> None:
    driver = Driver()
    driver.follow(FIRST)
    driver.follow(SECOND)
    driver.request()
    driver.answer(fetched(0, error_code=ErrorCode.not_leader_or_follower))

    request = driver.request()

    assert request is not None
    assert request.forgotten == [(TOPIC_ID, 0)]


def test_records_for_a_partition_that_has_been_removed_are_ignored() -> None:
    driver, _ = asking()
    driver.state.forget(FIRST)

    assert driver.answer(fetched()) == []


def test_records_fetched_under_an_older_epoch_are_ignored() -> None:
    driver, _ = asking()
    driver.follow(epoch=4)

    assert driver.answer(fetched()) == []
    assert driver.asked() == [(0, 4, 10, 2)]


def test_the_same_epoch_again_changes_nothing() -> None:
    driver, following = asking()

    assert driver.follow() is following
    assert driver.answer(fetched()) == [Append(following, fetched())]


def test_a_topic_created_again_is_fetched_by_its_new_id() -> None:
    driver, _ = asking()
    driver.answer()
    driver.state.follow(FIRST, b"n" * 16, 3, LogEnd(0, -1, 0))

    request = driver.request()

    assert request is not None
    assert request.forgotten == [(TOPIC_ID, 0)]
    assert list(request.entries) == [(b"n" * 16, 0)]


def test_after_a_lost_answer_all_partitions_wait_and_are_sent_again() -> None:
    driver = Driver()
    driver.follow(FIRST)
    driver.follow(SECOND)
    driver.request()

    driver.state.lost(driver.now)

    assert driver.request() is None
    assert driver.state.next_retry() == driver.now + BACKOFF_S
    driver.now += BACKOFF_S
    assert len(driver.asked()) == 2


def test_a_lost_session_has_no_actions() -> None:
    driver, _ = asking()

    assert driver.answer(error_code=ErrorCode.invalid_fetch_session_epoch) == []
    assert driver.asked() == [(0, 3, 10, 2)]


def test_a_throttled_partition_is_left_out_only_while_it_lags_and_the_quota_is_exceeded() -> None:
    driver = Driver()
    behind, caught_up = driver.follow(FIRST), driver.follow(SECOND)
    driver.request()
    driver.answer(fetched(0), fetched(1))
    driver.state.appended(behind, behind.end, high_watermark=100)
    driver.state.appended(caught_up, caught_up.end, high_watermark=10)

    request = driver.state.request(driver.now, lambda _: True)
    assert request is not None
    assert request.forgotten == [(TOPIC_ID, 0)]
    driver.answer()

    assert driver.asked() == [(0, 3, 10, 2)]


def test_the_point_of_divergence() -> None:
    expected = {
        "the leader's epoch ends first": ((4, 60), (4, 40), 40),
        "the follower's epoch ends first": ((4, 30), (4, 40), 30),
        "the follower does not know the epoch": ((3, 25), (4, 40), 25),
        "the follower knows no epoch": ((-1, -1), (4, 40), 40),
        "the leader's epoch ends after the follower's": ((4, 60), (4, 200), 60),
        "the follower knows no epoch and ends first": ((-1, -1), (4, 200), 100),
    }
    for case, (end, (epoch, end_offset), offset) in expected.items():
        assert truncation_offset(end, 100, leader_epoch=epoch, leader_end_offset=end_offset) == offset, case
