"""Regular expressions of members: what RE2 has, and nothing that takes long."""

import pytest

from headrace.coordinator.subscriptions import compiled, matching, metadata_hash
from headrace.errors import ErrorCode, KafkaError
from tests.unit.coordinator.fake_topics import FakeTopics


def test_an_expression_stands_for_whole_names() -> None:
    topics = FakeTopics(orders=1, orders_eu=1, old_orders=1)
    assert matching("orders.*", topics) == ("orders", "orders_eu")
    assert matching("orders", topics) == ("orders",)
    assert matching("^(old|new)_[a-z]+$", topics) == ("old_orders",)


@pytest.mark.parametrize(
    "regex",
    [
        "(",
        "[",
        "(a)\\1",
        "(?=a)b",
        "(?<!a)b",
        "(a+)+b",
        "(a|a*)*b",
        "(.*a){20}",
        ".*.*.*.*.*x",
        "a{2000}",
        "a" * 1001,
    ],
)
def test_what_re2_lacks_or_what_may_take_long_is_refused(regex: str) -> None:
    with pytest.raises(KafkaError) as raised:
        compiled(regex)
    assert raised.value.code is ErrorCode.invalid_regular_expression


def test_the_hash_tells_of_topics_that_come_grow_and_go() -> None:
    topics = FakeTopics(t=1)
    seen = {metadata_hash(["t", "u"], topics)}
    topics.set("t", 2)
    seen.add(metadata_hash(["t", "u"], topics))
    topics.set("u", 1)
    seen.add(metadata_hash(["t", "u"], topics))
    assert len(seen) == 3
    assert metadata_hash(["missing"], topics) == 0
