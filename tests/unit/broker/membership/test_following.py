"""The fetchers of a member that stops."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, cast

from headrace.broker.membership.following import MemberFetchers
from headrace.config import BrokerConfig
from headrace.types import TopicPartition


def test_a_broker_that_stops_follows_no_further_partitions() -> None:
    def no_link(*_: object) -> Any:
        raise AssertionError("a link to a leader")

    with ThreadPoolExecutor(1) as executor:
        fetchers = MemberFetchers(
            BrokerConfig({"listeners": "PLAINTEXT://127.0.0.1:0"}),
            executor,
            link_to=no_link,
            address_of=lambda _: None,
            broker_epoch=lambda: 1,
        )
        fetchers.is_leaving = True
        fetchers.follow([cast("Any", SimpleNamespace(topic_partition=TopicPartition("t", 0), leader=2))])
    assert list(fetchers.figures()) == []
