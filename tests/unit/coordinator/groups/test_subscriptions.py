from headrace.coordinator.groups.subscriptions import metadata_hash
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
