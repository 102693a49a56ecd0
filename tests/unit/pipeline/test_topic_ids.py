import re

import pytest

from headrace.pipeline.engine.exactly_once.topic_ids import Accepted, TopicChangedError, check
from headrace.pipeline.errors import TemporaryError


def test_the_ids_of_all_topics_read_so_far_are_kept() -> None:
    assert check({"a": "1"}, {"a": "1", "b": "2"}, job="raw") == {"a": "1", "b": "2"}


def test_a_topic_created_again_is_an_error_with_both_ids_and_both_ways_on() -> None:
    with pytest.raises(TopicChangedError) as raised:
        check({"a": "old"}, {"a": "new"}, job="raw")
    ways = r"with id old.*again with id new.*run the job with --accept-new-topic a.*restore the topic with id old"
    assert re.search(ways, str(raised.value))


def test_a_topic_that_brokers_do_not_know_may_be_known_later() -> None:
    with pytest.raises(TemporaryError) as raised:
        check({"a": "old"}, {"b": "2"}, job="raw")
    assert re.search(r"do not know the topic\. If it was deleted, .* --accept-new-topic a$", str(raised.value))


def test_only_accepted_topics_may_be_created_again() -> None:
    stored, now = {"a": "1", "b": "1", "c": "1"}, {"a": "2", "b": "2", "c": "1"}
    assert Accepted(["a", "c"]).created_again(stored, now) == ["a"]


def test_a_topic_accepted_once_must_be_accepted_again_after_the_next_time() -> None:
    accepted = Accepted(["a"])
    assert [accepted.created_again({"a": "1"}, {"a": now}) for now in ("2", "2", "3")] == [["a"], ["a"], []]
