from collections import Counter
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.cluster.placement import check_manual, place
from headrace.errors import ErrorCode, KafkaError
from tests.support.examples import examples


@settings(max_examples=examples(25))
@given(st.sets(st.integers(0, 1000), min_size=1, max_size=12), st.integers(1, 40), st.data())
def test_replicas_are_distinct_and_leaders_balanced(brokers: set[int], partitions: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, len(brokers)))
    placed = place(dict.fromkeys(brokers), partitions, factor, Random(data.draw(st.integers())))
    assert len(placed) == partitions
    assert all(len(set(replicas)) == factor and set(replicas) <= brokers for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[broker] for broker in brokers) <= 1


def test_the_followers_of_one_leader_are_spread_over_brokers() -> None:
    placed = place(dict.fromkeys(range(5)), 20, 2, Random(1))
    for leader in range(5):
        assert len({replicas[1] for replicas in placed if replicas[0] == leader}) == 4


@settings(max_examples=examples(25))
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 20), st.integers())
@example(2, 3, 20, 1)
def test_the_replicas_of_a_partition_are_in_different_racks(racks: int, each: int, partitions: int, seed: int) -> None:
    rack_of: dict[int, str | None] = {broker: f"r{broker % racks}" for broker in range(racks * each)}
    for factor in range(1, len(rack_of) + 1):
        for replicas in place(rack_of, partitions, factor, Random(seed)):
            assert len(set(replicas)) == factor
            assert len({rack_of[replica] for replica in replicas}) == min(factor, racks)


def test_leaders_alternate_between_racks() -> None:
    rack_of: dict[int, str | None] = {0: "a", 1: "a", 2: "b", 3: "b"}
    leaders = [rack_of[replicas[0]] for replicas in place(rack_of, 4, 2, Random(1))]
    assert leaders in (["a", "b"] * 2, ["b", "a"] * 2)


def test_one_broker_without_a_rack_makes_racks_irrelevant() -> None:
    placed = place({0: "a", 1: "a", 2: None}, 30, 2, Random(1))
    assert {0, 1} in [set(replicas) for replicas in placed]


def test_more_replicas_than_brokers_are_refused() -> None:
    with pytest.raises(KafkaError, match=r"3 time\(s\): only 2 broker\(s\)") as caught:
        place({1: None, 2: None}, 1, 3, Random(1))
    assert caught.value.code == ErrorCode.invalid_replication_factor


def test_an_invalid_manual_assignment_is_refused() -> None:
    refused: dict[str, list[int]] = {
        "empty replica list": [],
        "broker 1 more than once": [1, 1],
        "broker 7, which is not registered": [7],
        r"1 replica\(s\), but others have 2": [1],
    }
    for message, replicas in refused.items():
        with pytest.raises(KafkaError, match=message) as caught:
            check_manual(replicas, {1, 2}, 2)
        assert caught.value.code == ErrorCode.invalid_replica_assignment
