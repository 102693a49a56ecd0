import pytest

from headrace.coordinator.groups.records import embedded
from headrace.coordinator.groups.records.embedded import subscribed_topics
from headrace.coordinator.groups.subscriptions import metadata_hash
from tests.unit.coordinator.driver import subscription
from tests.unit.coordinator.fake_topics import FakeTopics


def test_the_metadata_hash_changes_with_the_topics() -> None:
    topics = FakeTopics(t=1)
    seen = {metadata_hash(["t", "u"], topics)}
    topics.set("t", 2)
    seen.add(metadata_hash(["t", "u"], topics))
    topics.set("u", 1)
    seen.add(metadata_hash(["t", "u"], topics))
    assert len(seen) == 3
    assert metadata_hash(["missing"], topics) == 0


def test_the_topics_of_several_subscriptions_are_put_together() -> None:
    assert subscribed_topics([subscription("t", "u"), subscription("u", "v"), subscription()]) == {"t", "u", "v"}
    assert subscribed_topics([]) == set()
    assert subscribed_topics([subscription("t"), b"?"]) is None


def test_equal_topics_are_decoded_once_and_too_many_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "MAX_TOPICS", 3)
    assert subscribed_topics([subscription("t", "u")] * 100) == {"t", "u"}
    assert subscribed_topics([subscription("t", "u"), subscription("t")] * 100) == {"t", "u"}
    assert subscribed_topics([subscription("t", "u"), subscription("t", "v")]) is None
