"""`headrace cluster`, `reassign` and `elect` in a cluster of one broker."""

import json
from pathlib import Path

import pytest

from headrace.cli.cluster import Cluster
from tests.cli.conftest import Headrace


@pytest.fixture
def only_broker(cluster: Cluster) -> int:
    return next(iter(cluster.admin.list_topics(timeout=10).brokers))


def test_one_broker_is_a_healthy_cluster(headrace: Headrace, topic: str, only_broker: int) -> None:
    shown = json.loads(headrace("cluster", "--json").stdout)

    assert (shown["healthy"], shown["controller"], shown["moves"]) == (True, only_broker, [])
    [broker] = shown["brokers"]
    assert (broker["id"], broker["alive"]) == (only_broker, True)
    assert broker["partitions_led"] == broker["partitions_hosted"] == len(shown["partitions"])
    assert broker["disk"]["free"] > 0
    [partition] = [one for one in shown["partitions"] if (one["topic"], one["partition"]) == (topic, 1)]
    assert (partition["leader"], partition["isr"], partition["problem"]) == (only_broker, [only_broker], None)


def test_a_pipe_gets_tab_separated_lines(headrace: Headrace, topic: str) -> None:
    lines = headrace("cluster").stdout.splitlines()

    assert any(line.startswith("controller\tbroker ") for line in lines)
    assert "broker\taddress\track\tleads\thosts\tnot_in_isr\tused\tfree" in lines


def test_a_quiet_cluster_prints_nothing(headrace: Headrace) -> None:
    shown = headrace("cluster", "--quiet")
    assert (shown.stdout, shown.stderr) == ("", "")


def test_one_broker_needs_no_moves(headrace: Headrace, topic: str) -> None:
    shown = headrace("reassign", "plan")
    assert "Nothing to move: this cluster has only one broker" in shown.stderr


def test_a_plan_for_a_broker_that_does_not_exist_is_not_executed(
    headrace: Headrace, topic: str, tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [77]}]}))

    shown = headrace("reassign", "execute", str(plan), "--yes", status=1)

    assert f"{topic}:0 cannot move to broker 77" in shown.stderr


def test_a_plan_that_is_fulfilled_is_done(headrace: Headrace, topic: str, tmp_path: Path, only_broker: int) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "replicas": [only_broker]}]}))

    started = headrace("reassign", "execute", str(plan), "--yes")
    verified = headrace("reassign", "verify", str(plan), "--json")

    assert "nothing to move" in started.stderr
    assert [outcome["state"] for outcome in json.loads(verified.stdout)] == ["done"]


def test_a_plan_for_a_topic_that_does_not_exist_differs(headrace: Headrace, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text('{"partitions": [{"topic": "missing", "partition": 0, "replicas": [0]}]}')

    verified = headrace("reassign", "verify", str(plan), "--json", status=3)
    started = headrace("reassign", "execute", str(plan), "--yes", status=1)

    assert json.loads(verified.stdout)[0]["state"] == "different"
    assert "topic 'missing' does not exist" in started.stderr


def test_nothing_moves_and_nothing_can_be_cancelled(headrace: Headrace) -> None:
    assert json.loads(headrace("reassign", "status", "--json").stdout) == []
    assert "No partition is being reassigned" in headrace("reassign", "status").stderr
    assert "None of these partitions" in headrace("reassign", "cancel", "--yes").stderr


def test_no_election_is_needed(headrace: Headrace, topic: str, only_broker: int) -> None:
    shown = headrace("elect", f"{topic}:0", "--execute", "--json")

    [election] = json.loads(shown.stdout)
    assert (election["leader"], election["election"]) == (only_broker, "not needed")


def test_an_election_in_a_missing_partition_is_an_error(headrace: Headrace, topic: str) -> None:
    assert f"topic '{topic}' has no partition 9" in headrace("elect", f"{topic}:9", status=1).stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("reassign", "plan", "--brokers", "1", "--add", "2"), "--brokers cannot be combined with --add or --retire"),
        (("reassign", "plan", "--add", "2", "--retire", "2"), "broker 2 cannot be both added and retired"),
        (("reassign", "plan", "--retire", "one"), "--retire 'one' is not a broker id"),
        (("reassign", "cancel"), "needs confirmation"),
        (("reassign", "cancel", "orders", "--plan", "plan.json"), "either partitions or --plan"),
        (("elect", "--unclean", "--execute"), "needs confirmation"),
        (("elect", "orders:x"), "'orders:x' is not TOPIC or TOPIC:PARTITIONS"),
        (("cluster", "--watch"), "--watch needs a terminal"),
    ],
)
def test_an_invalid_command_line_is_refused(headrace: Headrace, words: tuple[str, ...], problem: str) -> None:
    assert problem in headrace(*words, status=2).stderr


def test_an_unreadable_plan_is_named(headrace: Headrace, tmp_path: Path) -> None:
    shown = headrace("reassign", "verify", str(tmp_path / "none.json"), status=1)
    assert "none.json': no such file or directory" in shown.stderr
