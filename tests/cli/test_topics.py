import json
from collections.abc import Callable

from tests.cli.conftest import Headrace


def test_a_created_topic_is_listed_and_described(headrace: Headrace, new_name: Callable[[], str]) -> None:
    name = new_name()
    created = headrace("topics", "create", name, "-p", "3", "-r", "1", "--config", "retention.ms=3600000")
    assert created.stdout == f"Created topic {name}: 3 partitions, 1 replica each\n"

    listed = headrace("topics", "list").stdout.splitlines()
    assert listed[0] == "topic\tpartitions\treplicas"
    assert f"{name}\t3\t1" in listed

    [described] = json.loads(headrace("topics", "describe", name, "--json").stdout)
    assert (described["name"], described["internal"], described["records"]) == (name, False, 0)
    assert {"name": "retention.ms", "value": "3600000", "source": "topic"} in described["configs"]
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    for partition in described["partitions"]:
        assert partition["replicas"] == partition["isr"] == [partition["leader"]]


def test_offsets_and_size_on_disk_are_described(headrace: Headrace, topic: str) -> None:
    headrace("produce", topic, "--partition", "1", stdin="a\nb\nc\n")
    [described] = json.loads(headrace("topics", "describe", topic, "--json").stdout)
    partition = described["partitions"][1]
    assert (partition["earliest"], partition["latest"], partition["records"]) == (0, 3, 3)
    assert partition["size"] > 0
    assert described["size"] == partition["size"]

    lines = headrace("topics", "describe", topic).stdout.splitlines()
    assert f"topic\t{topic}" in lines
    assert "records\t3" in lines
    assert (
        f"1\t{partition['leader']}\t{partition['leader']}\t{partition['leader']}\t0\t3\t3\t{partition['size']}" in lines
    )


def test_an_internal_topic_is_shown_on_request(headrace: Headrace, topic: str) -> None:
    headrace("consume", topic, "--group", f"{topic}-group", "--until-end")
    names = {entry["name"]: entry["internal"] for entry in json.loads(headrace("topics", "list", "--json").stdout)}
    assert "__consumer_offsets" not in names
    everything = json.loads(headrace("topics", "list", "--internal", "--json").stdout)
    assert {entry["name"]: entry["internal"] for entry in everything}["__consumer_offsets"] is True


def test_an_existing_topic_is_not_created_twice(headrace: Headrace, topic: str) -> None:
    failed = headrace("topics", "create", topic, status=1)
    assert failed.stderr.startswith(f"Error: topic '{topic}' already exists\n")
    assert "already exists" in headrace("topics", "create", topic, "--if-not-exists").stdout


def test_a_bad_setting_is_refused_by_name(headrace: Headrace, new_name: Callable[[], str]) -> None:
    failed = headrace("topics", "create", new_name(), "--config", "retention.msec=1", status=1)
    assert "retention.msec" in failed.stderr
    assert len(failed.stderr.splitlines()) <= 2


def test_a_forbidden_name_is_refused(headrace: Headrace) -> None:
    failed = headrace("topics", "create", "no/slash", status=1)
    assert "creating topic 'no/slash'" in failed.stderr


def test_settings_are_changed_and_reset(headrace: Headrace, topic: str) -> None:
    headrace("topics", "alter", topic, "--config", "retention.ms=1000", "--config", "cleanup.policy=compact")
    assert _own_settings(headrace, topic) == {"retention.ms": "1000", "cleanup.policy": "compact"}
    headrace("topics", "alter", topic, "--delete-config", "retention.ms")
    assert _own_settings(headrace, topic) == {"cleanup.policy": "compact"}


def test_partitions_can_grow_but_not_shrink(headrace: Headrace, topic: str) -> None:
    grown = headrace("topics", "alter", topic, "--partitions", "5")
    assert grown.stderr == f"{topic}: 5 partitions, up from 2\n"
    failed = headrace("topics", "alter", topic, "--partitions", "3", status=1)
    assert "already has 5 partitions; the number can only grow" in failed.stderr


def test_a_deleted_topic_is_gone(headrace: Headrace, topic: str) -> None:
    assert headrace("topics", "delete", topic, "--yes").stderr == f"Deleted topic {topic}\n"
    assert topic not in headrace("topics", "list").stdout
    assert f"topic '{topic}' does not exist" in headrace("topics", "delete", topic, "--yes", status=1).stderr
    headrace("topics", "delete", topic, "--yes", "--if-exists")


def test_a_misspelt_topic_gets_a_suggestion(headrace: Headrace, topic: str) -> None:
    for command in (["topics", "describe"], ["consume"], ["produce"], ["topics", "alter", "--partitions", "9"]):
        failed = headrace(*command, topic + "x", status=1)
        assert failed.stderr.startswith(f"Error: topic '{topic}x' does not exist at ")
        assert f"Did you mean '{topic}'" in failed.stderr
    assert f"{topic}x" not in headrace("topics", "list").stdout


def _own_settings(headrace: Headrace, topic: str) -> dict[str, str]:
    [described] = json.loads(headrace("topics", "describe", topic, "--json").stdout)
    return {config["name"]: config["value"] for config in described["configs"] if config["source"] == "topic"}
