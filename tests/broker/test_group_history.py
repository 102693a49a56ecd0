"""The history of groups over HTTP, in metrics, and after a crash."""

import json
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families

from headrace.testing import Broker
from tests.broker.watched_groups import SETTINGS, get, member, produce
from tests.support.broker_process import BrokerProcess
from tests.support.ports import free_port
from tests.support.topics import create_topic
from tests.support.waiting import wait_for

PAGE = Path(__file__).parents[2] / "docs" / "watching-groups.md"
PROTOCOLS = ("classic", "consumer")


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as broker:
        create_topic(broker.bootstrap, "orders", 2)
        yield broker


def events(http: str | None, group: str) -> list[tuple[str, str | None]]:
    found = get(http, f"/groups/timeline?group={group}")["events"]
    return [(event["event"], event["member"] and event["member"]["client_id"]) for event in found]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_lag_pace_and_owners_are_current(broker: Broker, protocol: str) -> None:
    produce(broker.bootstrap, 100)
    with member(broker.bootstrap, "billing", group_protocol=protocol) as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 40)], asynchronous=False)
        described = get(broker.http, "/groups/describe?group=billing")
        [listed] = wait_for(
            lambda: [item for item in get(broker.http, "/groups")["groups"] if item["lag"] == 60], "a sample"
        )
    assert (described["type"], described["state"], described["members"]) == (protocol, "Stable", 1)
    assert listed["group"] == "billing"
    read, empty = described["partitions"]
    assert (read["committed"], read["end"], read["lag"], read["lost"]) == (40, 100, 60, 0)
    assert 0 < read["lag_seconds"] < 60
    assert (empty["committed"], empty["end"], empty["lag"], empty["lag_seconds"]) == (None, 0, 0, 0.0)
    [entry] = described["member_list"]
    assert (entry["client_id"], entry["host"], entry["partitions"]) == ("app", "127.0.0.1", {"orders": [0, 1]})
    assert read["member_id"] == entry["member_id"]


@pytest.mark.parametrize(("protocol", "assumed", "unread"), [("classic", "earliest", 30), ("consumer", "latest", 0)])
def test_lag_without_a_commit_counts_from_the_reset_position(protocol: str, assumed: str, unread: int) -> None:
    with Broker({**SETTINGS, "headrace.group.lag.assumed.reset": assumed}) as broker:
        create_topic(broker.bootstrap, "orders", 2)
        produce(broker.bootstrap, 100)
        produce(broker.bootstrap, 30, partition=1)
        with member(broker.bootstrap, "billing", group_protocol=protocol) as consumer:
            consumer.commit(offsets=[TopicPartition("orders", 0, 40)], asynchronous=False)
            described = get(broker.http, "/groups/describe?group=billing")
            wait_for(lambda: metrics(broker).get("headrace_consumergroup_assumed_offset"), "a sample")
            wait_for(lambda: get(broker.http, "/groups")["groups"][0]["lag"] == 60 + unread, "a sample")
        # Its lag remains after its last member has gone.
        wait_for(lambda: get(broker.http, "/groups")["groups"][0]["members"] == 0, "the member leaves")
        listed = get(broker.http, "/groups")
        assert get(broker.http, "/groups/describe?group=billing")["lag"] == 60 + unread
        found = metrics(broker)
        [_, series] = get(broker.http, "/groups/history?group=billing")["series"]
    [group] = listed["groups"]
    for item in (described, group):
        assert (item["lag"], item["partitions_not_committed"]) == (60 + unread, 1)
    assert listed["assumed_reset"] == described["assumed_reset"] == assumed
    start = 30 - unread
    read, waiting = described["partitions"]
    assert (read["committed"], read["counted_from"], read["lag"]) == (40, 40, 60)
    assert (waiting["committed"], waiting["counted_from"], waiting["lag"]) == (None, start, unread)
    assert (waiting["lag_seconds"] > 0) == (unread > 0)
    assert found["kafka_consumergroup_lag"]["billing", "1", "orders"] == unread
    assert found["kafka_consumergroup_group_sum_lag"] == {("billing",): 60 + unread}
    assert found["kafka_consumergroup_current_offset"] == {("billing", "0", "orders"): 40}
    assert found["headrace_consumergroup_assumed_offset"] == {("billing", "1", assumed, "orders"): start}
    assert found["headrace_consumergroup_partitions_not_committed"] == {("billing", assumed, "orders"): 1}
    assert [series["points"][-1][place] for place in (1, 2, 3, 6)] == [None, 30, unread, start]


def metrics(broker: Broker) -> dict[str, dict[tuple[str, ...], float]]:
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return {
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples} for family in families
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_timeline_shows_joins_leaves_and_awaited_members(broker: Broker, protocol: str) -> None:
    heartbeat: dict[str, Any] = {"heartbeat.interval.ms": 200} if protocol == "classic" else {}
    with ExitStack() as stack:
        first = stack.enter_context(member(broker.bootstrap, "g", "first", group_protocol=protocol, **heartbeat))
        with ExitStack() as inner:
            # The first must poll to rejoin.
            config = {"bootstrap.servers": broker.bootstrap, "group.id": "g", "client.id": "second"}
            second = Consumer(config | {"group.protocol": protocol} | heartbeat)
            inner.callback(second.close)
            second.subscribe(["orders"])
            wait_for(lambda: (first.poll(0.02), second.poll(0.02), second.assignment())[-1], "both have partitions")
        wait_for(lambda: (first.poll(0.02), len(first.assignment()) == 2)[-1], "the first has both partitions")
    rebalances = get(broker.http, "/groups/timeline?group=g")["rebalances"]
    by_second = next(
        rebalance for rebalance in rebalances if [entry["client_id"] for entry in rebalance["joined"]] == ["second"]
    )
    assert any(entry["client_id"] == "first" for phase in by_second["phases"] for entry in phase["waited_for"])
    assert [entry["client_id"] for rebalance in rebalances for entry in rebalance["left"]] == ["second", "first"]
    assert rebalances[-1]["outcome"] == "empty"


def test_a_timeline_shows_a_fenced_static_member(broker: Broker) -> None:
    with (
        member(broker.bootstrap, "g", "old", group_instance_id="host-1") as old,
        member(broker.bootstrap, "g", "new", group_instance_id="host-1"),
    ):
        wait_for(lambda: (old.poll(0.02), ("fenced", "old") in events(broker.http, "g"))[-1], "a fencing")
    assert ("replaced", "new") in events(broker.http, "g")


def test_a_timeline_shows_a_member_that_stopped_polling(broker: Broker) -> None:
    with member(broker.bootstrap, "g", "slow", session_timeout_ms=6000, max_poll_interval_ms=6000) as slow:
        # It no longer polls: the client leaves the group and gives the reason.
        wait_for(lambda: ("left", "slow") in events(broker.http, "g"), "the member leaves")
        slow.poll(0)


def test_a_history_has_every_sample_and_ends_with_its_group(broker: Broker) -> None:
    produce(broker.bootstrap, 10)
    with member(broker.bootstrap, "g") as consumer:
        for offset in (2, 5, 9):
            consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
            wait_for(lambda: points(broker, "g")[-1:] and points(broker, "g")[-1][1] == offset, "a sample")  # noqa: B023
    seen = [point for point in points(broker, "g") if point[1] is not None]
    assert [committed for committed, _ in {(point[1], None): None for point in seen}] == [2, 5, 9]
    assert {point[2] for point in seen} == {10}
    assert all(point[3] == point[2] - point[1] for point in seen)
    gaps = {after[0] - before[0] for before, after in pairwise(seen)}
    assert min(gaps) >= 100

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_consumer_groups(["g"])["g"].result(10)
    before = len(points(broker, "g"))
    wait_for(lambda: "g" not in [item["group"] for item in get(broker.http, "/groups")["groups"]], "removal")
    again = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "other"})
    again.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    again.close()
    wait_for(lambda: len(points(broker, "other")) > 3, "later samples")
    assert len(points(broker, "g")) <= before + 2


def points(broker: Broker, group: str) -> list[Any]:
    series = get(broker.http, f"/groups/history?group={group}&topic=orders&partition=0")["series"]
    return list(series[0]["points"]) if series else []


def test_metrics_have_the_names_used_by_exporters(broker: Broker) -> None:
    produce(broker.bootstrap, 100)

    with member(broker.bootstrap, "billing") as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 40)], asynchronous=False)
        wait_for(lambda: metrics(broker).get("kafka_consumergroup_group_sum_lag") == {("billing",): 60}, "a sample")
        found = metrics(broker)
    assert set(found["kafka_consumergroup_lag"].values()) == {60.0, 0.0}
    assert set(found["kafka_consumergroup_current_offset"].values()) == {40.0}
    assert found["kafka_consumergroup_lag_sum"] == {("billing", "orders"): 60.0}
    assert found["kafka_consumergroup_members"] == {("billing",): 1.0}
    assert found["kafka_consumergroup_group_max_lag"] == {("billing",): 60.0}
    assert 0 < found["kafka_consumergroup_group_max_lag_seconds"]["billing",] < 60
    assert 0 < found["kafka_consumergroup_group_lag_seconds"]["billing", "0", "orders"] < 60
    assert found["headrace_consumergroup_rebalances"]["billing",] == 1.0
    named = set(re.findall(r"`((?:kafka|headrace)_[a-z_]+)`", PAGE.read_text()))
    # A forecast is not always possible.
    absent = {name for name in named if name.removesuffix("_total") not in found}
    assert absent <= {"headrace_consumergroup_catch_up_seconds"}


def test_answers_have_the_documented_fields(broker: Broker) -> None:
    produce(broker.bootstrap, 100)
    with member(broker.bootstrap, "billing") as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 40)], asynchronous=False)
        wait_for(lambda: len(points(broker, "billing")) > 1, "two samples")
        documented = re.findall(
            r"curl '?http://127.0.0.1:9404(\S+?)'?\n\n```json\n(.*?)```", PAGE.read_text(), re.DOTALL
        )
        assert [path.partition("?")[0] for path, _ in documented] == [
            "/groups",
            "/groups/describe",
            "/groups/history",
            "/groups/timeline",
        ]
        for path, example in documented:
            assert paths(get(broker.http, path)) == paths(json.loads(example)), path


def paths(value: Any, path: str = "") -> set[str]:
    """Return the path of every field; elements of a list share one path."""
    if isinstance(value, dict):
        return {item for name, field in value.items() for item in {f"{path}.{name}", *paths(field, f"{path}.{name}")}}
    if isinstance(value, list):
        return {item for element in value for item in paths(element, f"{path}[]")}
    return set()


REFUSED = {
    "/groups/describe": (400, "the parameter group is required, for example ?group=my-group"),
    "/groups/describe?group=nobody": (404, "group nobody does not exist; /groups lists all groups"),
    "/groups/history?group=g&from=yesterday": (400, "from must be a whole number, not 'yesterday'"),
    "/groups/history?group=g&from=2&to=1": (400, "'from' (2) is later than 'to' (1)"),
    "/groups/timeline?group=g&limit=0": (400, "limit must be from 1 to 5000"),
    "/groups/timeline?group=g&since=1": (400, "unknown parameter 'since'; known: from, group, limit, to"),
}


def test_invalid_requests_are_refused_with_the_reason(broker: Broker) -> None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()
    for path, (status, message) in REFUSED.items():
        with pytest.raises(urllib.error.HTTPError) as failed:
            get(broker.http, path)
        with failed.value as answer:
            assert answer.code == status, path
            assert message in json.load(answer)["message"]


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {**SETTINGS, "headrace.http.listener": f"127.0.0.1:{free_port()}"}
    with BrokerProcess(tmp_path / "data", settings=settings) as process:
        create_topic(process.bootstrap, "orders", 2)
        yield process


def test_a_history_survives_a_kill(process: BrokerProcess) -> None:
    http = f"http://{process.settings['headrace.http.listener']}"

    def history() -> list[Any]:
        return list(get(http, "/groups/history?group=g")["series"])

    produce(process.bootstrap, 10)
    with member(process.bootstrap, "g") as consumer:
        consumer.commit(offsets=[TopicPartition("orders", 0, 4)], asynchronous=False)
        wait_for(lambda: [series for series in history() if series["points"][-1][1] == 4], "a sample")
    before = get(http, "/groups/timeline?group=g")["events"]
    assert before[-1]["event"] == "empty"
    process.restart(signal.SIGKILL)
    after = get(http, "/groups/timeline?group=g")["events"]
    assert after[: len(before)] == before
    series = history()[0]
    assert series["points"][-1][1:4] == [4, 10, 6]


def test_a_broker_starts_with_a_damaged_history(process: BrokerProcess) -> None:
    http = f"http://{process.settings['headrace.http.listener']}"
    with member(process.bootstrap, "g"):
        wait_for(lambda: get(http, "/groups/timeline?group=g")["events"], "events")
    process.sigterm()
    (process.data / "group-history.db").write_bytes(b"no database at all" * 500)
    process.start()
    with member(process.bootstrap, "g"):
        wait_for(lambda: get(http, "/groups/timeline?group=g")["events"], "new events")
    assert "The history of groups in" in process.log()
    assert list(process.data.glob("group-history.db.damaged-*"))
