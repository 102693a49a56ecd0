import pytest

from headrace.broker.membership.throttles import configure_throttle
from headrace.replication.throttle import ReplicationThrottle
from headrace.types import TopicPartition

SETTING = "leader.replication.throttled.replicas"


def test_unreadable_entries_in_the_list_of_a_topic_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    throttle = ReplicationThrottle(window_count=11, window_s=1.0)
    long = "9" * 5000 + ":4"
    topics = {"t": {SETTING: f"{long},1:\u00b2,2:4"}, "plain": {SETTING: "3:4"}, "other": {}}

    configure_throttle(throttle, SETTING, topics, 4)

    assert throttle.is_throttled(TopicPartition("t", 2))
    assert throttle.is_throttled(TopicPartition("plain", 3))
    [warning] = caplog.messages
    assert warning.startswith(f"{SETTING} of topic t has entries that are not partition:broker, such as '999")
    assert len(warning) < 200
