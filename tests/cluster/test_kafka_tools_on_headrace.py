"""Kafka's administrative tools print the same on three Headrace brokers as on three brokers of Kafka 3.9."""

import json
from collections.abc import Iterator

import pytest

from tests.adoption.kafka import zookeeper_jars
from tests.cluster.trio import Trio
from tests.cluster.twins import Twins, directories, sizeless
from tests.support.java_gateway import JavaGateway
from tests.support.kafka_process import kafka_jars
from tests.support.kafka_tools import (
    CONFIGS,
    CONSUMER_GROUPS,
    ELECT,
    GET_OFFSETS,
    LOG_DIRS,
    REASSIGN,
    TOPICS,
    KafkaTools,
)
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(580)]

FIRST_MS = 1_700_000_000_000
"""In 2023: topics with such records need `retention.ms=-1`."""


@pytest.fixture(scope="module", params=["4.3", "3.9"])
def twins(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Twins]:
    """New clusters for each version of the tools."""
    java = JavaGateway(kafka_jars() if request.param == "4.3" else zookeeper_jars())
    try:
        twins = Twins(tmp_path_factory.mktemp("twins"), KafkaTools(java))
        try:
            # Coordinators are shown, so they must be the same brokers.
            twins.create("__consumer_offsets", (1, 2, 3), (2, 3, 1), (3, 1, 2), **{"cleanup.policy": "compact"})
            yield twins
        finally:
            twins.close()
    finally:
        java.close()


# Topics


def test_topics_are_created_listed_described_grown_and_deleted(twins: Twins) -> None:
    twins.create("made", (1, 2, 3), (2, 3, 1), **{"retention.ms": 1000000})
    twins.same(TOPICS, "--create", "--topic", "made", "--if-not-exists", "--partitions", "1")
    twins.same(TOPICS, "--create", "--topic", "with.default.replicas")
    twins.same(TOPICS, "--alter", "--topic", "made", "--partitions", "3", "--replica-assignment", "1:2:3,2:3:1,3:2:1")
    twins.same(TOPICS, "--alter", "--topic", "absent", "--partitions", "3", "--if-exists")
    twins.settle()
    described = twins.same(TOPICS, "--describe", "--topic", "made")
    assert "Partition: 2\tLeader: 3\tReplicas: 3,2,1\tIsr: 1,2,3" in described
    twins.same(TOPICS, "--describe", "--topics-with-overrides", "--topic", "made")
    twins.same(TOPICS, "--describe", "--topic", "absent", "--if-exists")
    for unhealthy in ("under-replicated", "unavailable", "under-min-isr", "at-min-isr"):
        assert not twins.same(TOPICS, "--describe", f"--{unhealthy}-partitions", "--topic", "made").strip()
    assert "made" in twins.same(TOPICS, "--list", "--exclude-internal").splitlines()
    twins.same(TOPICS, "--delete", "--topic", "made")
    twins.same(TOPICS, "--delete", "--topic", "with.*")
    twins.same(TOPICS, "--delete", "--topic", "made", "--if-exists")
    twins.settle()
    assert "made" not in twins.same(TOPICS, "--list").splitlines()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--create", "--topic", "refused", "--replication-factor", "4"),
        ("--create", "--topic", "refused/name"),
        ("--create", "--topic", "refused", "--config", "no.such=1"),
        ("--create", "--topic", "refused", "--config", "retention.ms=soon"),
        ("--create", "--topic", "refused", "--replica-assignment", "1:1"),
        ("--create", "--topic", "refused", "--replica-assignment", "1:2,3"),
        ("--create", "--topic", "__consumer_offsets"),
        ("--alter", "--topic", "__consumer_offsets", "--partitions", "2"),
        ("--alter", "--topic", "__consumer_offsets", "--partitions", "3"),
        ("--alter", "--topic", "absent", "--partitions", "2"),
        ("--delete", "--topic", "absent"),
        ("--describe", "--topic", "absent"),
    ],
)
def test_the_same_requests_about_topics_are_refused(arguments: tuple[str, ...], twins: Twins) -> None:
    twins.refused(TOPICS, *arguments)


# Settings


def test_settings_of_topics_are_added_described_and_deleted(twins: Twins) -> None:
    twins.create("set", (1, 2))
    of_topic = ("--entity-type", "topics", "--entity-name", "set")
    twins.same(CONFIGS, *of_topic, "--describe")
    twins.same(CONFIGS, *of_topic, "--alter", "--add-config", "cleanup.policy=[compact,delete],segment.bytes=1048576")
    assert "cleanup.policy=compact,delete" in twins.same(CONFIGS, *of_topic, "--describe")
    twins.same(CONFIGS, *of_topic, "--alter", "--add-config", "leader.replication.throttled.replicas=[0:1,0:2]")
    twins.same(CONFIGS, *of_topic, "--describe")
    added = twins.text_file("retention.ms=3600000\n")
    twins.same(CONFIGS, *of_topic, "--alter", "--add-config-file", str(added))
    everything = [twins.on(trio, CONFIGS, "--entity-type", "topics", "--describe").printed for trio in twins.trios]
    assert sorted(everything[0].splitlines()) == sorted(everything[1].splitlines())
    deleted = "cleanup.policy,segment.bytes,retention.ms,leader.replication.throttled.replicas"
    twins.same(CONFIGS, *of_topic, "--alter", "--delete-config", deleted)
    assert "retention" not in twins.same(CONFIGS, *of_topic, "--describe")
    for refused in ("no.such=1", "retention.ms=soon", "min.insync.replicas=0"):
        twins.refused(CONFIGS, *of_topic, "--alter", "--add-config", refused)
    twins.refused(CONFIGS, "--topic", "absent", "--alter", "--add-config", "retention.ms=1")


def test_settings_of_one_broker_and_of_all_are_added_described_and_deleted(twins: Twins) -> None:
    one, every = ("--entity-type", "brokers", "--entity-name", "1"), ("--entity-type", "brokers", "--entity-default")
    twins.same(CONFIGS, *every, "--alter", "--add-config", "log.cleaner.threads=2,log.retention.ms=777777777")
    twins.same(CONFIGS, *one, "--alter", "--add-config", "leader.replication.throttled.rate=1000,log.retention.ms=5000")
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.retention.ms=777777777" in twins.same(CONFIGS, *one, "--describe")
    twins.same(CONFIGS, *every, "--describe")
    twins.same(CONFIGS, "--entity-type", "brokers", "--describe")
    twins.refused(CONFIGS, *one, "--alter", "--add-config", "broker.id=7")
    twins.refused(CONFIGS, *every, "--alter", "--add-config", "listeners=PLAINTEXT://:9")
    twins.same(CONFIGS, *one, "--alter", "--delete-config", "leader.replication.throttled.rate,log.retention.ms")
    twins.same(CONFIGS, *every, "--alter", "--delete-config", "log.cleaner.threads,log.retention.ms")
    assert "=" not in twins.same(CONFIGS, *one, "--describe")


# Reassignments


def test_a_plan_is_generated(twins: Twins) -> None:
    twins.create("planned", (1, 2), (2, 3))
    topics = twins.json_file({"version": 1, "topics": [{"topic": "planned"}]})
    options = ("--topics-to-move-json-file", topics, "--broker-list", "1,2", "--disable-rack-aware", "--generate")
    ours, theirs = (twins.on(trio, REASSIGN, *options).printed.splitlines() for trio in twins.trios)
    assert ours[:2] == theirs[:2]  # the present replicas; the rest begins with a random broker
    proposed = json.loads(ours[-1])["partitions"]
    assert [sorted(partition["replicas"]) for partition in proposed] == [[1, 2], [1, 2]]
    twins.refused(REASSIGN, "--topics-to-move-json-file", topics, "--broker-list", "1,9", "--generate")


def test_a_reassignment_to_other_more_and_fewer_brokers_is_executed_and_verified(twins: Twins) -> None:
    twins.create("moved", (1, 2), (2, 3), (1, 2))
    twins.produce("moved", 300, partitions=3)
    plan = twins.plan({("moved", 0): (2, 3), ("moved", 1): (3, 1, 2), ("moved", 2): (1,)})
    assert "but replica set is 1,2 rather than 2,3" in twins.same_move(*plan, "--verify")
    twins.same_move(*plan, "--execute", "--throttle", "10000000")
    twins.settle()
    assert "No partition reassignments found." in twins.same_move("--list")
    twins.same(CONFIGS, "--topic", "moved", "--describe")
    twins.same_move(*plan, "--verify", "--preserve-throttles")
    twins.same(CONFIGS, "--broker", "1", "--describe")
    assert "Reassignment of partition moved-0 is completed." in twins.same_move(*plan, "--verify")
    assert "throttled" not in twins.same(CONFIGS, "--topic", "moved", "--describe")
    assert "throttled" not in twins.same(CONFIGS, "--broker", "1", "--describe")
    twins.same(TOPICS, "--describe", "--topic", "moved")
    twins.same_move(*plan, "--cancel")


def test_a_reassignment_in_progress_is_listed_extended_and_cancelled(twins: Twins) -> None:
    twins.create("slow", (1, 2), (2, 1))
    twins.create("quick", (1,))
    twins.produce("slow", 1000, size=10_000, partitions=2)
    # Each partition loses a replica, too: the tool of 3.9 does not cancel moves that only add replicas.
    plan, additional = twins.plan({("slow", 0): (2, 3), ("slow", 1): (3, 1)}), twins.plan({("quick", 0): (3,)})
    twins.same_move(*plan, "--execute", "--throttle", "10000")
    assert "slow-0: replicas: 2,3,1. adding: 3. removing: 1." in twins.same_move("--list")
    assert "Adding Replicas: 3" in twins.same(TOPICS, "--describe", "--topic", "slow")
    twins.same(CONFIGS, "--topic", "slow", "--describe")
    assert "Reassignment of partition slow-0 is still in progress." in twins.same_move(*plan, "--verify")
    twins.same_move(*additional, "--execute", status=1)
    twins.same_move(*additional, "--execute", "--additional")
    twins.same_move(*plan, "--execute", "--additional", "--throttle", "20000")
    twins.same(CONFIGS, "--broker", "2", "--describe")
    twins.same(TOPICS, "--alter", "--topic", "slow", "--partitions", "3", status=1)
    assert "Successfully cancelled partition reassignments for: slow-0,slow-1" in twins.same_move(*plan, "--cancel")
    twins.settle()
    assert "throttled" not in twins.same(CONFIGS, "--topic", "slow", "--describe")
    twins.same(TOPICS, "--describe", "--topic", "slow")
    assert "Reassignment of partition quick-0 is completed." in twins.same_move(*additional, "--verify")


@pytest.mark.parametrize("replicas", [(2, 9), (2, 2), ()])
def test_the_same_plans_are_refused(replicas: tuple[int, ...], twins: Twins) -> None:
    twins.same_move(*twins.plan({("__consumer_offsets", 0): replicas}), "--execute", status=1)


@pytest.mark.parametrize("partition", [("absent", 0), ("__consumer_offsets", 7)])
def test_plans_for_partitions_that_do_not_exist_are_refused(partition: tuple[str, int], twins: Twins) -> None:
    plan = twins.plan({partition: (1, 2)})
    twins.same_move(*plan, "--execute", status=1)


def test_a_replica_moves_to_another_log_directory_and_back(twins: Twins) -> None:
    twins.create("rehoused", (1, 2))
    twins.produce("rehoused", 1000, size=10_000)
    origins = {}
    for trio in twins.trios:
        origins[trio] = [path for path in directories(trio, 1) if (path / "rehoused-0").exists()]

    def plan(trio: Trio) -> str:
        (target,) = [path for path in directories(trio, 1) if path not in origins[trio]]
        replicas = {"topic": "rehoused", "partition": 0, "replicas": [1, 2], "log_dirs": [str(target), "any"]}
        return twins.json_file({"version": 1, "partitions": [replicas]})

    moves = ("--reassignment-json-file", plan)
    limit = ("--replica-alter-log-dirs-throttle", "100000")
    assert "Successfully started moving log directory" in twins.same_move(*moves, "--execute", *limit)
    assert "Reassignment of replica rehoused-0-1 is still in progress." in twins.same_move(*moves, "--verify")
    twins.same(CONFIGS, "--broker", "1", "--describe")
    found = [
        sizeless(twins.on(trio, LOG_DIRS, "--describe", "--broker-list", "1", "--topic-list", "rehoused").printed)
        for trio in twins.trios
    ]
    assert found[0] == found[1] == {1: {("rehoused-0", True, False, None), ("rehoused-0", False, True, None)}}
    twins.same_move(*moves, "--cancel")
    assert "is not being moved from log dir" in twins.same_move(*moves, "--verify")
    twins.same_move(*moves, "--execute")
    for trio in twins.trios:
        wait_for(
            lambda: "completed successfully" in twins.on(trio, REASSIGN, *moves, "--verify").printed,  # noqa: B023
            "the move to the other directory",
        )
    twins.same_move(*moves, "--verify")


def test_the_number_of_replicas_may_be_fixed(twins: Twins) -> None:
    if "--disallow-replication-factor-change" not in twins.on(twins.headrace, REASSIGN, "--help").errors:
        pytest.skip("this version of the tool has no such option")
    twins.create("fixed", (1, 2))
    plan = (*twins.plan({("fixed", 0): (1, 2, 3)}), "--execute", "--disallow-replication-factor-change")
    refused = twins.on(twins.headrace, REASSIGN, *plan)
    assert refused.status == 1
    assert "The replication factor is changed from 2 to 3" in refused.printed


# Log directories and offsets


def test_log_directories_are_described(twins: Twins) -> None:
    twins.create("stored", (1, 2), (2, 3))
    options = ("--describe", "--topic-list", "stored")
    ours, theirs = (sizeless(twins.on(trio, LOG_DIRS, *options).printed) for trio in twins.trios)
    assert ours == theirs
    assert ours[2] == {("stored-0", True, False, None), ("stored-1", True, False, None)}
    twins.same(LOG_DIRS, "--describe", "--broker-list", "1,9", status=1)


def test_offsets_are_found_by_time_and_partition(twins: Twins) -> None:
    twins.create("timed", (1, 2), (2, 3), (3, 1), **{"retention.ms": -1})
    twins.produce("timed", 90, partitions=3, first_ms=FIRST_MS)
    for time in ("-1", "-2", "-3", "-4", "-5", "latest", "earliest", "max-timestamp", "earliest-local"):
        twins.same(GET_OFFSETS, "--topic", "timed", "--time", time)
    assert twins.same(GET_OFFSETS, "--topic", "timed", "--time", str(FIRST_MS + 10_000)).split() == [
        "timed:0:4",
        "timed:1:3",
        "timed:2:3",
    ]
    twins.same(GET_OFFSETS, "--topic", "timed", "--time", str(FIRST_MS + 1_000_000))
    twins.same(GET_OFFSETS, "--topic", "timed", "--partitions", "0,2")
    twins.same(GET_OFFSETS, "--topic-partitions", "timed:1-")
    twins.same(GET_OFFSETS, "--topic", "absent", status=1)


# Groups


def test_groups_and_their_members_are_listed_and_described(twins: Twins) -> None:
    twins.create("read", (1, 2), (2, 3), (3, 1))
    twins.produce("read", 30, partitions=3)
    members = twins.consumers("read", "readers", 30)
    group = ("--describe", "--group", "readers")
    for listed in ((), ("--state",), ("--type",), ("--state", "Stable"), ("--state", "Empty"), ("--type", "classic")):
        twins.same(CONSUMER_GROUPS, "--list", *listed)
    assert "tester-MEMBER" in twins.same(CONSUMER_GROUPS, *group)
    for options in (("--offsets",), ("--state",), ("--members",), ("--members", "--verbose")):
        twins.same(CONSUMER_GROUPS, *group, *options)
    twins.same(CONSUMER_GROUPS, "--describe", "--all-groups")
    # An active group cannot be changed.
    to_earliest = ("--reset-offsets", "--group", "readers", "--to-earliest", "--topic", "read", "--execute")
    assert "current state is Stable" in twins.same(CONSUMER_GROUPS, *to_earliest, status=0)
    twins.same(CONSUMER_GROUPS, "--delete", "--group", "readers", status=0)
    twins.same(CONSUMER_GROUPS, "--delete-offsets", "--group", "readers", "--topic", "read", status=0)
    for member in members:
        member.close()
    assert "Empty" in twins.same(CONSUMER_GROUPS, *group, "--state")
    twins.same(CONSUMER_GROUPS, "--delete", "--group", "readers")
    twins.same(CONSUMER_GROUPS, "--delete", "--group", "readers", status=0)


def test_offsets_of_a_group_are_reset_in_every_form_and_deleted(twins: Twins) -> None:
    twins.create("again", (1, 2), (2, 3), (3, 1), **{"retention.ms": -1})
    twins.produce("again", 90, partitions=3, first_ms=FIRST_MS)
    for member in twins.consumers("again", "resetters", 90):
        member.close()
    reset = ("--reset-offsets", "--group", "resetters")
    forms = [
        ("--to-earliest",),
        ("--to-latest",),
        ("--to-current",),
        ("--to-offset", "12"),
        ("--to-offset", "1200"),
        ("--shift-by", "-5"),
        ("--shift-by", "500"),
        ("--to-datetime", "2023-11-14T22:13:30.000"),
        ("--by-duration", "PT1H"),
    ]
    for form in forms:
        twins.same(CONSUMER_GROUPS, *reset, *form, "--topic", "again", "--dry-run")
    twins.same(CONSUMER_GROUPS, *reset, "--to-offset", "4", "--topic", "again:0,1", "--execute")
    twins.same(CONSUMER_GROUPS, "--describe", "--group", "resetters")
    twins.same(CONSUMER_GROUPS, *reset, "--to-current", "--all-topics", "--export", "--dry-run")
    positions = str(twins.text_file("again,0,7\nagain,2,8\n"))
    twins.same(CONSUMER_GROUPS, *reset, "--from-file", positions, "--execute")
    twins.same(CONSUMER_GROUPS, "--reset-offsets", "--all-groups", "--to-earliest", "--topic", "again:2", "--execute")
    twins.same(CONSUMER_GROUPS, "--delete-offsets", "--group", "resetters", "--topic", "again:0")
    assert "again           0" not in twins.same(CONSUMER_GROUPS, "--describe", "--group", "resetters")
    twins.same(CONSUMER_GROUPS, "--delete", "--all-groups")
    assert not twins.same(CONSUMER_GROUPS, "--list").strip()


# Elections, last because they stop brokers


def test_preferred_leaders_are_elected_for_one_partition_those_of_a_file_and_all(twins: Twins) -> None:
    twins.create("led", (2, 1, 3), (2, 3, 1), (2, 1, 3))
    twins.same(ELECT, "--election-type", "preferred", "--topic", "led", "--partition", "0")
    twins.refused(ELECT, "--election-type", "preferred", "--topic", "absent", "--partition", "0")
    for trio in twins.trios:
        trio.brokers[2].sigterm()
    twins.settle(2)
    assert "Leader: 3\tReplicas: 2,3,1\tIsr: 1,3" in twins.same(TOPICS, "--describe", "--topic", "led")
    twins.same(TOPICS, "--describe", "--under-replicated-partitions", "--topic", "led")
    twins.refused(ELECT, "--election-type", "preferred", "--topic", "led", "--partition", "0")
    twins.same(LOG_DIRS, "--describe", "--broker-list", "2", status=1)
    for trio in twins.trios:
        trio.brokers[2].start()
    twins.settle()
    elected = "Successfully completed leader election (PREFERRED) for partitions"
    one = twins.same(ELECT, "--election-type", "preferred", "--topic", "led", "--partition", "0")
    assert f"{elected} led-0\n" in one
    file = twins.json_file({"partitions": [{"topic": "led", "partition": 0}, {"topic": "led", "partition": 1}]})
    twins.same(ELECT, "--election-type", "preferred", "--path-to-json-file", file)
    assert "led-2" in twins.same(ELECT, "--election-type", "preferred", "--all-topic-partitions")
    assert not twins.same(ELECT, "--election-type", "preferred", "--all-topic-partitions").strip()


def test_a_leader_that_is_not_in_sync_is_elected(twins: Twins) -> None:
    twins.create("unclean", (2, 3))
    for trio in twins.trios:
        trio.brokers[2].sigkill()
    for trio in twins.trios:
        wait_for(lambda: trio.state("unclean", 0)["isr"] == [3], "an ISR of one")  # noqa: B023
        trio.brokers[3].sigkill()
    for trio in twins.trios:
        wait_for(lambda: trio.state("unclean", 0)["leader"] == -1, "no leader")  # noqa: B023
    twins.same(TOPICS, "--describe", "--unavailable-partitions", "--topic", "unclean")
    for trio in twins.trios:
        trio.brokers[2].start()
        wait_for(lambda: trio.read("/brokers/ids/2"), "broker 2")  # noqa: B023
    twins.refused(ELECT, "--election-type", "preferred", "--topic", "unclean", "--partition", "0")
    twins.same(ELECT, "--election-type", "unclean", "--topic", "unclean", "--partition", "0")
    assert "Leader: 2\tReplicas: 2,3\tIsr: 2" in twins.same(TOPICS, "--describe", "--topic", "unclean")
    for trio in twins.trios:
        trio.brokers[3].start()
    twins.settle()
    twins.same(ELECT, "--election-type", "unclean", "--topic", "unclean", "--partition", "0")
