from headrace.replication.throttle import ReplicationThrottle
from headrace.types import TopicPartition

BROKER = 4


def throttle(rate: int = 100) -> ReplicationThrottle:
    made = ReplicationThrottle(window_count=11, window_s=1.0)
    made.rate = rate
    return made


def test_only_listed_replicas_of_this_broker_are_throttled() -> None:
    made = throttle()
    made.configure("t", "0:4, 1:5,2:4", BROKER)

    assert [made.is_throttled(TopicPartition("t", partition)) for partition in range(4)] == [True, False, True, False]
    assert not made.is_throttled(TopicPartition("other", 0))


def test_unreadable_entries_are_ignored_and_returned() -> None:
    for pair in ("\u00b2:4", "1:\u00b2", "1", "1:", ":4", "1:2:4", "9" * 5000 + ":4"):
        made = throttle()
        assert made.configure("t", f"0:4,{pair},,2:4", BROKER) == [pair]
        throttled = [made.is_throttled(TopicPartition("t", partition)) for partition in range(4)]
        assert throttled == [True, False, True, False], pair


def test_a_star_throttles_all_replicas_of_a_topic_until_the_list_is_empty() -> None:
    made = throttle()
    made.configure("t", "*", BROKER)
    assert made.is_throttled(TopicPartition("t", 9))

    made.configure("t", "", BROKER)

    assert not made.is_throttled(TopicPartition("t", 9))


def test_traffic_above_the_rate_is_exceeded_until_time_makes_up_for_it() -> None:
    made = throttle()
    made.record(100, 0.0)
    assert not made.is_exceeded(0.5)
    made.record(400, 0.0)

    assert made.is_exceeded(4.9)
    assert not made.is_exceeded(5.0)


def test_traffic_before_the_windows_is_forgotten() -> None:
    made = throttle()
    made.record(100_000, 0.0)

    assert made.is_exceeded(10.9)
    assert not made.is_exceeded(11.0)


def test_the_default_rate_is_never_exceeded() -> None:
    made = ReplicationThrottle(window_count=11, window_s=1.0)
    made.record(1 << 60, 0.0)

    assert not made.is_exceeded(0.0)
