"""`headrace groups` against a broker, or against Apache Kafka (HEADRACE_TEST_BOOTSTRAP), which has no HTTP listener."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.cli.conftest import Headrace
from tests.support.ports import free_port
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient


@pytest.fixture
def http(request: pytest.FixtureRequest, bootstrap: str) -> str:
    """The address of the HTTP listener, whose port is not among the broker's settings."""
    broker: Broker = request.getfixturevalue("cli_broker")
    if broker.bootstrap != bootstrap:
        pytest.skip("Apache Kafka has no HTTP listener")
    assert broker.http is not None
    return broker.http


@pytest.fixture
def group(headrace: Headrace, bootstrap: str, topic: str) -> Iterator[str]:
    """A group without members, which has consumed 4 of 10 records in partition 0 and none of 5 in partition 1."""
    headrace("produce", topic, "--partition", "0", stdin="x\n" * 10)
    headrace("produce", topic, "--partition", "1", stdin="x\n" * 5)
    name = f"{topic}-group"
    commit(bootstrap, name, TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 0))
    yield name
    headrace("groups", "delete", name, "--yes", "--if-exists")


def commit(bootstrap: str, group: str, *offsets: TopicPartition) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=list(offsets), asynchronous=False)
    consumer.close()


@contextmanager
def member(bootstrap: str, group: str, topic: str) -> Iterator[Consumer]:
    """A member with assigned partitions."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "client.id": "tester", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    try:
        wait_for(lambda: consumer.poll(0.05) or consumer.assignment(), "an assignment")
        yield consumer
    finally:
        consumer.close()


def describe(headrace: Headrace, group: str, *more: str) -> dict[str, Any]:
    [described] = json.loads(headrace("groups", "describe", group, "--json", *more).stdout)
    assert isinstance(described, dict)
    return described


def offsets(headrace: Headrace, group: str) -> list[int | None]:
    return [item["committed"] for item in describe(headrace, group)["partitions"]]


def test_groups_are_listed_by_state_and_type_and_their_members_described(
    headrace: Headrace, bootstrap: str, group: str, topic: str
) -> None:
    assert f"{group}\tclassic\tEmpty" in headrace("groups", "list", "--state", "empty", "--type", "classic").stdout
    assert group not in headrace("groups", "list", "--type", "consumer").stdout
    with member(bootstrap, group, topic):
        described = describe(headrace, group)
        [who] = described["members"]
        assert (who["client_id"], who["partitions"]) == ("tester", {topic: [0, 1]})
        assert {item["member_id"] for item in described["partitions"]} == {who["member_id"]}
        assert group not in headrace("groups", "list", "--state", "Empty").stdout
        listed = json.loads(headrace("groups", "list", "--json", "-s", "Stable", "-s", "Dead").stdout)
        assert {"name": group, "type": "classic", "state": "Stable", "protocol_type": "consumer"} in listed
    assert "'foo' is not a valid group state" in headrace("groups", "list", "--state", "foo", status=2).stderr


def test_a_list_can_include_lags(headrace: Headrace, group: str) -> None:
    listed = {load["name"]: load for load in json.loads(headrace("groups", "list", "--lag", "--json").stdout)}
    assert (listed[group]["members"], listed[group]["lag"]) == (0, 11)
    assert 0 < listed[group]["lag_seconds"] < 60


@pytest.mark.parametrize("side", ["wire", "http"])
def test_a_group_is_described(
    headrace: Headrace, group: str, topic: str, side: str, request: pytest.FixtureRequest
) -> None:
    more = ("--http", request.getfixturevalue("http")) if side == "http" else ()
    described = describe(headrace, group, *more)
    assert (described["name"], described["type"], described["state"]) == (group, "classic", "Empty")
    first, second = described["partitions"]
    assert (first["topic"], first["partition"], first["committed"], first["end"], first["lag"]) == (topic, 0, 4, 10, 6)
    assert (second["committed"], second["end"], second["lag"]) == (0, 5, 5)
    assert 0 < first["lag_seconds"] < 60
    assert described["lag"] == 11
    assert (described["rebalances"] is None) == (side == "wire")

    lines = headrace("groups", "describe", group, *more).stdout.splitlines()
    assert f"group\t{group}" in lines
    assert "topic\tpartition\tcommitted\tend\tlag\tbehind\tmember" in lines
    [row] = [line for line in lines if line.startswith(f"{topic}\t0\t")]
    assert row.startswith(f"{topic}\t0\t4\t10\t6\t")


@pytest.mark.parametrize("side", ["wire", "http"])
def test_partitions_without_a_commit_are_marked_and_counted(
    headrace: Headrace, bootstrap: str, group: str, topic: str, side: str, request: pytest.FixtureRequest
) -> None:
    http = ("--http", request.getfixturevalue("http")) if side == "http" else ()
    headrace("groups", "delete-offsets", group, f"{topic}:1", "--yes")
    with member(bootstrap, group, topic):
        headrace("produce", topic, "--partition", "1", stdin="x\n" * 4)
        for assumed, start in (("earliest", 0), ("latest", 9)):
            more = (*http, "--assume-reset", assumed)
            described = describe(headrace, group, *more)
            first, second = described["partitions"]
            assert (first["committed"], first["counted_from"], first["lag"]) == (4, 4, 6)
            assert (second["committed"], second["counted_from"], second["end"]) == (None, start, 9)
            assert second["lag"] == 9 - start
            expected = (15 - start, 1, assumed)
            names = ("lag", "partitions_not_committed", "assumed_reset")
            assert tuple(described[name] for name in names) == expected
            lines = headrace("groups", "describe", group, *more).stdout.splitlines()
            assert {"not committed\t1", f"assumed reset\t{assumed}"} <= set(lines)
            listed = json.loads(headrace("groups", "list", "--lag", "--json", "--assume-reset", assumed).stdout)
            [found] = [item for item in listed if item["name"] == group]
            assert tuple(found[name] for name in names) == expected


def test_lag_uses_the_reset_policy_of_the_broker(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker({"headrace.group.lag.assumed.reset": "latest"}) as broker:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)
        headrace("produce", "t", "--create", stdin="x\n" * 4)
        with member(broker.bootstrap, "g", "t"):
            assert (describe(headrace, "g")["assumed_reset"], describe(headrace, "g")["lag"]) == ("latest", 0)
            assert describe(headrace, "g", "--assume-reset", "earliest")["lag"] == 4
            [listed] = json.loads(headrace("groups", "list", "--lag", "--json").stdout)
            assert (listed["lag"], listed["assumed_reset"]) == (0, "latest")


def test_the_lag_in_a_deleted_topic_is_unknown(headrace: Headrace, topic: str, group: str) -> None:
    headrace("topics", "delete", topic, "--yes")
    wait_for(lambda: describe(headrace, group)["lag"] is None, "an unknown lag")


def test_a_misspelt_group_gets_a_suggestion(headrace: Headrace, group: str) -> None:
    for words in (["describe"], ["delete", "--yes"], ["reset", "--to", "end"]):
        failed = headrace("groups", *words, group + "x", status=1)
        assert failed.stderr.startswith(f"Error: group '{group}x' does not exist at ")
        assert f"Did you mean '{group}'" in failed.stderr


def test_a_group_is_reset_only_with_execute(headrace: Headrace, bootstrap: str, group: str, topic: str) -> None:
    for position, expected in (
        (("--to", "earliest"), [0, 0]),
        (("--to", "latest"), [10, 5]),
        (("--to", "7"), [7, 5]),
        (("--to=-2",), [8, 3]),
        (("--to", "1h"), [0, 0]),
        (("--to", "2099-01-01"), [10, 5]),
        (("--to", "current"), [4, 0]),
        (("--shift-by", "-2"), [2, 0]),
    ):
        tried = json.loads(headrace("groups", "reset", group, *position, "--json").stdout)
        assert [item["new"] for item in tried["offsets"]] == expected, position
        assert [item["current"] for item in tried["offsets"]] == [4, 0]
        assert offsets(headrace, group) == [4, 0]

        headrace("groups", "reset", group, *position, "--execute")
        assert offsets(headrace, group) == expected, position
        commit(bootstrap, group, TopicPartition(topic, 0, 4), TopicPartition(topic, 1, 0))


def test_a_reset_to_an_offset_out_of_range_warns(headrace: Headrace, group: str, topic: str) -> None:
    warning = headrace("groups", "reset", group, "--to", "7").stderr
    assert f"{topic}:1: offset 7 does not exist; the nearest is 5" in warning
    assert "Nothing was changed. Add --execute to commit these offsets." in warning


def test_only_the_given_partitions_are_reset(headrace: Headrace, group: str, topic: str) -> None:
    headrace("groups", "reset", group, "--to", "latest", "--topic", f"{topic}:1", "--execute", "--quiet")
    assert offsets(headrace, group) == [4, 5]
    failed = headrace("groups", "reset", group, "--to", "latest", "--topic", f"{topic}:7", status=1)
    assert f"partition 7 of topic '{topic}' does not exist" in failed.stderr
    assert "is not TOPIC or" in headrace("groups", "reset", group, "--to", "end", "-t", f"{topic}:x", status=2).stderr
    assert "give exactly one of" in headrace("groups", "reset", group, status=2).stderr


def test_an_invalid_position_is_reported_first(headrace: Headrace, group: str) -> None:
    for name in (group, "never-there"):
        failed = headrace("groups", "reset", name, "--to", "banana", status=2).stderr
        assert "'banana' is not a valid position: use earliest, latest, current, an offset (42)" in " ".join(
            failed.replace("│", "").split()
        )


def test_a_group_is_reset_to_saved_offsets(headrace: Headrace, group: str, topic: str, tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    for text in (
        headrace("groups", "reset", group, "--to", "current", "--json").stdout,
        headrace("groups", "reset", group, "--to", "current").stdout,
        f'"{topic}",0,4\n"{topic}",1,0\n',
        f'"{group}","{topic}",0,4\n"{group}","{topic}",1,0\n"other","{topic}",0,9\n',
    ):
        saved.write_text(text)
        headrace("groups", "reset", group, "--to", "latest", "--execute")
        headrace("groups", "reset", group, "--from-file", str(saved), "--execute")
        assert offsets(headrace, group) == [4, 0], text


def test_a_file_without_valid_offsets_is_refused(headrace: Headrace, group: str, tmp_path: Path) -> None:
    for content, why in (
        ("t,0", "line 1"),
        ("t,0,4", "does not exist"),
    ):
        path = tmp_path / "bad"
        path.write_text(content)
        assert why in headrace("groups", "reset", group, "--from-file", str(path), status=1).stderr
    path.write_text(f'"other","{group}",0,4\n"another","{group}",1,0\n')
    refused = headrace("groups", "reset", group, "--from-file", str(path), status=1).stderr
    assert "It has offsets for these groups: another, other." in refused
    assert "cannot read" in headrace("groups", "reset", group, "--from-file", "/nowhere", status=1).stderr


def test_a_group_with_members_is_not_changed(headrace: Headrace, bootstrap: str, group: str, topic: str) -> None:
    with member(bootstrap, group, topic):
        assert "once the group's 1 member has stopped" in headrace("groups", "reset", group, "--to", "end").stderr
        refused = headrace("groups", "reset", group, "--to", "end", "--execute", status=1)
        assert f"group '{group}' has 1 member: tester at " in refused.stderr
        assert f"group '{group}' has members" in headrace("groups", "delete", group, "--yes", status=1).stderr
        refused = headrace("groups", "delete-offsets", group, topic, "--yes", status=1)
        why = f"cannot delete the offsets of group '{group}' for topic '{topic}': members are subscribed to it"
        assert why in refused.stderr
    assert offsets(headrace, group) == [4, 0]


def test_a_reset_creates_a_missing_group(headrace: Headrace, topic: str, group: str) -> None:
    fresh = f"{topic}-new"
    headrace("groups", "reset", fresh, "--to", "latest", "--topic", topic, "--execute")
    assert offsets(headrace, fresh) == [10, 5]
    headrace("groups", "delete", fresh, "--yes")


def test_offsets_and_groups_are_deleted(headrace: Headrace, group: str, topic: str) -> None:
    done = headrace("groups", "delete-offsets", group, f"{topic}:1", "--yes")
    assert done.stderr == f"Deleted the offset of group {group} for {topic}:1\n"
    assert offsets(headrace, group) == [4]
    assert (
        "has no offset for partition 1"
        in headrace("groups", "delete-offsets", group, f"{topic}:1", "--yes", status=1).stderr
    )
    assert headrace("groups", "delete", group, "--yes").stderr == f"Deleted group {group}\n"
    assert group not in headrace("groups", "list").stdout


def test_a_timeline_shows_joins_and_leaves(
    headrace: Headrace, bootstrap: str, group: str, topic: str, http: str
) -> None:
    with member(bootstrap, group, topic):
        pass
    lines = headrace("groups", "timeline", group, "--http", http).stdout.splitlines()
    assert lines[0] == "time\tgen\tmember\tclient\thost\tinstance\tevent\treason"
    events = [line.split("\t") for line in lines[1:]]
    assert [event[6] for event in events if event[3] == "tester"] == [
        "was given its member id and asked to rejoin with it",
        "joined",
        "sent the assignment",
        "left",
    ]
    rebalances = headrace("groups", "timeline", group, "--rebalances", "--http", http).stdout.splitlines()
    assert [line.split("\t")[3] for line in rebalances] == ["outcome", "stable", "empty"]
    assert "left: tester@127.0.0.1" in rebalances[2]

    headrace("groups", "delete", group, "--yes")
    found = json.loads(headrace("groups", "timeline", group, "--http", http, "--json").stdout)
    assert found["events"][-1]["event"] == "deleted"
    assert "does not exist" in headrace("groups", "timeline", "never-there", "--http", http, status=1).stderr


def test_a_timeline_without_an_http_listener_explains_what_it_needs(headrace: Headrace, group: str) -> None:
    failed = headrace("groups", "timeline", group, status=1)
    assert f"not available from the coordinator of group '{group}', broker 0" in failed.stderr
    assert "headrace.http.listener" in failed.stderr
    unreachable = headrace("groups", "timeline", group, "--http", "127.0.0.1:1", status=1)
    assert "no valid reply from the broker's HTTP listener at 127.0.0.1:1" in unreachable.stderr


def test_the_http_listener_is_found_in_broker_settings(headrace: Headrace, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    with Broker({"headrace.http.listener": f"127.0.0.1:{port}"}) as broker:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)
        headrace("topics", "create", "t")
        headrace("groups", "reset", "g", "--to", "end", "--topic", "t", "--execute")
        assert describe(headrace, "g")["rebalances"] == []


@contextmanager
def joined(bootstrap: str, group: str, protocol_type: str) -> Iterator[None]:
    """A member of the group whose metadata and assignment are not those of a consumer."""
    with WireClient(bootstrap, "worker") as client:
        join = {
            "group_id": group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": "",
            "protocol_type": protocol_type,
            "protocols": [{"name": "mine", "metadata": b"\0\1abc"}],
        }
        answer = client.ask(ApiKey.JOIN_GROUP, 3, join)
        who = {"group_id": group, "member_id": answer["member_id"]}
        assignments = [{"member_id": answer["member_id"], "assignment": b"\0\1zzz"}]
        client.ask(ApiKey.SYNC_GROUP, 2, {**who, "generation_id": answer["generation_id"], "assignments": assignments})
        yield
        client.ask(ApiKey.LEAVE_GROUP, 1, who)


@pytest.mark.parametrize("protocol_type", ["connect", "consumer"])
def test_a_group_that_is_not_of_ordinary_consumers_is_described_and_deleted(
    headrace: Headrace, bootstrap: str, group: str, topic: str, protocol_type: str
) -> None:
    other = f"{topic}-{protocol_type}"
    with joined(bootstrap, other, protocol_type):
        rows = headrace("groups", "list", "--lag").stdout.splitlines()
        assert f"{other}\tclassic\tStable\t1\t-\t-\t0" in rows
        assert any(row.startswith(f"{group}\tclassic\tEmpty\t0\t11\t") for row in rows)
        described = describe(headrace, other)
        [who] = described["members"]
        assert (described["assignor"], who["client_id"], who["partitions"]) == ("mine", "worker", {})
        to_start = ("groups", "reset", other, "--to", "earliest", "--topic", topic)
        assert "once the group's 1 member has stopped" in " ".join(headrace(*to_start).stderr.split())
        assert "worker at" in headrace(*to_start, "--execute", status=1).stderr
    assert f"{other}\tclassic\tEmpty\t0\t-\t-\t0" in headrace("groups", "list", "--lag").stdout.splitlines()
    headrace("groups", "delete", other, "--yes")
    assert other not in headrace("groups", "list").stdout


def commit_raw(bootstrap: str, group: str, topic: str) -> None:
    """Commit an offset for a group whose name client libraries refuse."""
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    request = {
        "group_id": group,
        "generation_id": -1,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [partition]}],
    }
    with WireClient(bootstrap) as client:
        client.ask(ApiKey.FIND_COORDINATOR, 0, {"key": "any"})  # creates the topic of offsets

        def committed() -> bool:
            [answered] = client.ask(ApiKey.OFFSET_COMMIT, 7, request)["topics"]
            return bool(answered["partitions"][0]["error_code"] == "none")

        wait_for(committed, "a committed offset")


def test_a_group_that_clients_cannot_describe_does_not_hide_the_others(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker() as broker:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", broker.bootstrap)
        headrace("produce", "t", "--create", stdin="x\n" * 4)
        commit(broker.bootstrap, "fine", TopicPartition("t", 0, 1))
        commit_raw(broker.bootstrap, "", "t")
        result = headrace("groups", "list", "--lag")
    unnamed, fine = result.stdout.splitlines()[1:]
    assert unnamed == "\tclassic\tEmpty\t-\t-\t-\t-"
    assert fine.startswith("fine\tclassic\tEmpty\t0\t3\t")
    assert result.stderr.startswith("Members or lag unknown (shown as '-'): describing group '': ")


def test_the_name_of_a_group_cannot_pass_for_another_group(headrace: Headrace, bootstrap: str, topic: str) -> None:
    forged = f"{topic}\ty\n{topic}-foo\tclassic\tEmpty"
    escaped = forged.replace("\t", r"\t").replace("\n", r"\n")
    commit_raw(bootstrap, forged, topic)
    rows = headrace("groups", "list").stdout.splitlines()
    assert [row for row in rows if topic in row] == [f"{escaped}\tclassic\tEmpty"]
    refused = headrace("groups", "delete", escaped, "--yes", status=1).stderr
    assert "`headrace groups list --json` shows it exactly" in " ".join(refused.split())
    assert forged in {entry["name"] for entry in json.loads(headrace("groups", "list", "--json").stdout)}
    headrace("groups", "delete", forged, "--yes")
    assert topic not in headrace("groups", "list").stdout
