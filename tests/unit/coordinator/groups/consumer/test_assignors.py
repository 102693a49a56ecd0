"""The server-side assignors: complete, balanced, and sticky."""

import time

import pytest
from hypothesis import given, strategies

from headrace.coordinator.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from headrace.coordinator.groups.records.consumer import Partitions, TopicIdPartition
from tests.support.speed import slowness
from tests.unit.coordinator.consumer_driver import partitions
from tests.unit.coordinator.fake_topics import topic_id

_TOPICS = {topic_id("t"): 7, topic_id("u"): 4, topic_id("v"): 1}
_SUBSCRIPTIONS = strategies.lists(strategies.sets(strategies.sampled_from(sorted(_TOPICS))), min_size=1, max_size=6)


def subscribers(*topics: str, current: dict[str, Partitions] | None = None) -> list[Subscriber]:
    """Return members `a`, `b`... that subscribe to the letters of one string each."""
    return [
        Subscriber(name, None, frozenset(map(topic_id, each)), (current or {}).get(name, frozenset()))
        for name, each in zip("abcdef", topics, strict=False)
    ]


@given(assignor=strategies.sampled_from(sorted(ASSIGNORS)), subscriptions=_SUBSCRIPTIONS)
def test_every_subscribed_partition_has_one_subscribed_reader(assignor: str, subscriptions: list[set[bytes]]) -> None:
    members = [Subscriber(str(n), None, frozenset(each), frozenset()) for n, each in enumerate(subscriptions)]
    wanted = {topic: _TOPICS[topic] for subscription in subscriptions for topic in subscription}
    result = ASSIGNORS[assignor](members, wanted)
    assigned = [one for item in result.values() for one in item]
    assert len(assigned) == len(set(assigned)) == sum(wanted.values())
    for member in members:
        assert {one.topic_id for one in result[member.member_id]} <= member.topic_ids


@given(members=strategies.integers(1, 6), gone=strategies.integers(0, 5))
def test_uniform_is_balanced_and_sticky(members: int, gone: int) -> None:
    counts = {topic_id("t"): 7, topic_id("u"): 4}
    before = assign_uniform(subscribers(*["tu"] * members), counts)
    assert max(map(len, before.values())) - min(map(len, before.values())) <= 1
    again = assign_uniform(subscribers(*["tu"] * members, current=before), counts)
    assert again == before
    left = [each for n, each in enumerate(subscribers(*["tu"] * members, current=before)) if n != gone]
    if left:
        after = assign_uniform(left, counts)
        for member in left:
            assert before[member.member_id] <= after[member.member_id], "members keep their partitions"


def test_uniform_balances_members_with_different_subscriptions() -> None:
    result = assign_uniform(subscribers("tu", "t"), {topic_id("t"): 4, topic_id("u"): 3})
    assert {name: len(each) for name, each in result.items()} == {"a": 4, "b": 3}
    assert partitions("u", 0, 1, 2) <= result["a"]


@given(subscriptions=_SUBSCRIPTIONS, changed=_SUBSCRIPTIONS)
def test_uniform_is_balanced_for_every_pair_of_subscribers(
    subscriptions: list[set[bytes]], changed: list[set[bytes]]
) -> None:
    members = [Subscriber(str(n), None, frozenset(each), frozenset()) for n, each in enumerate(subscriptions)]
    before = assign_uniform(members, _wanted(members))
    members = [
        Subscriber(str(n), None, frozenset(each), before.get(str(n), frozenset())) for n, each in enumerate(changed)
    ]

    result = assign_uniform(members, _wanted(members))

    for giver in members:
        for topic in {one.topic_id for one in result[giver.member_id]}:
            for taker in members:
                if topic in taker.topic_ids:
                    assert len(result[giver.member_id]) - len(result[taker.member_id]) < 2
    again = [member._replace(current=result[member.member_id]) for member in members]
    assert assign_uniform(again, _wanted(members)) == result


@pytest.mark.parametrize("holder", [None, "0"], ids=["fresh", "all with one member"])
def test_uniform_is_fast_for_many_different_subscriptions(holder: str | None) -> None:
    counts = {number.to_bytes(16, "big"): 500 for number in range(10)}
    topics = sorted(counts)
    everything = frozenset(TopicIdPartition(topic, index) for topic in topics for index in range(500))
    members = [
        Subscriber(
            str(n),
            None,
            frozenset(topics if not n else [topics[n % 10], topics[n % 9]]),
            everything if str(n) == holder else frozenset(),
        )
        for n in range(1000)
    ]

    def seconds() -> float:
        started = time.thread_time()
        assert {len(item) for item in assign_uniform(members, counts).values()} <= {4, 5, 6}
        return time.thread_time() - started

    # It is 0.025 s. On a busy machine, other processes slow down a thread.
    assert any(seconds() < 0.1 * slowness() for _ in range(5))


def test_range_assigns_the_same_ranges_of_every_topic() -> None:
    result = assign_range(subscribers("tu", "tu"), {topic_id("t"): 4, topic_id("u"): 4})
    assert result["a"] == partitions("t", 0, 1) | partitions("u", 0, 1)
    assert result["b"] == partitions("t", 2, 3) | partitions("u", 2, 3)


def test_range_puts_static_members_first() -> None:
    dynamic, static = subscribers("t", "t")
    static = static._replace(instance_id="z")
    result = assign_range([dynamic, static], {topic_id("t"): 3})
    assert result == {"b": partitions("t", 0, 1), "a": partitions("t", 2)}


def _wanted(members: list[Subscriber]) -> dict[bytes, int]:
    return {topic: _TOPICS[topic] for member in members for topic in member.topic_ids}
