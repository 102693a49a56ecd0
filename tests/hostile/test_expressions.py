"""Group members subscribe with slow regular expressions: others are served, and SIGTERM stops the broker."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.wire.apis import ApiKey
from tests.support.broker_process import BrokerProcess
from tests.support.speed import delay
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

TOPICS: Final = 1000
NAME: Final = "a" * 249
EVIL: Final = ("(?:aa|a)" * 45 + "#", "a?" * 28 + "b", ".{0,249}" * 6 + "#")
"""Python's `re` would practically never finish."""
SLOW: Final = "(?:.?){900}(a|b|0)#"
"""RE2 needs milliseconds for a name."""
MEMBER: Final = "A" * 22


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("crowded") / "data") as broker:
        client = WireClient(broker.bootstrap)
        names = [NAME, *(f"{NAME[:-5]}{number:05}" for number in range(TOPICS))]
        for start in range(0, len(names), 250):
            new = [
                {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
                for name in names[start : start + 250]
            ]
            answer = client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": new, "timeout": 60_000, "validate_only": False})
            assert {item["error_code"] for item in answer["topics"]} == {"none"}
        wait_for(lambda: _coordinator_error(client) == "none", "a coordinator")
        client.close()
        yield broker


def _coordinator_error(client: WireClient) -> str:
    return str(client.ask(ApiKey.FIND_COORDINATOR, 3, {"key": "g"})["error_code"])


def beat(client: WireClient, group: str, regex: str | None, *, member: str = MEMBER, epoch: int = 0) -> dict[str, Any]:
    return client.ask(
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
        1,
        {
            "group_id": group,
            "member_id": member,
            "member_epoch": epoch,
            "rebalance_timeout": 60_000 if epoch == 0 else -1,
            "subscribed_topic_names": [] if epoch == 0 else None,
            "subscribed_topic_regex": regex,
            "topic_partitions": [] if epoch == 0 else None,
        },
    )


def test_evil_expressions_are_answered(crowded: BrokerProcess) -> None:
    client = WireClient(crowded.bootstrap)
    for regex in EVIL:
        started = time.monotonic()
        assert beat(client, f"evil-{len(regex)}", regex)["error_code"] == "none"
        assert time.monotonic() - started < 5 * delay(), regex
    client.close()


def test_slow_expressions_of_many_members_keep_nobody_waiting(crowded: BrokerProcess) -> None:
    attacker, bystander = WireClient(crowded.bootstrap), WireClient(crowded.bootstrap)
    waits = []
    before = crowded.rss_bytes()
    for number in range(20):
        answer = beat(attacker, "slow", SLOW + "x" * number, member=f"{number:022}")
        assert answer["error_code"] == "none"
        for _ in range(5):
            started = time.monotonic()
            assert bystander.ask(ApiKey.API_VERSIONS, 0, {})["error_code"] == "none"
            waits.append(time.monotonic() - started)
    # one expression takes two seconds for all topics
    longer = delay()
    assert sorted(waits)[len(waits) // 2] < 0.1 * longer
    assert max(waits) < 1.5 * longer
    assert crowded.rss_bytes() - before < 100 << 20
    attacker.close()
    bystander.close()


@pytest.mark.slow
def test_topics_of_a_slow_expression_are_assigned_with_a_later_heartbeat(crowded: BrokerProcess) -> None:
    client = WireClient(crowded.bootstrap)
    regex = "(?:.?){248}(a|b|0|1)"  # slow enough for a later heartbeat
    epoch = beat(client, "late", regex)["member_epoch"]

    def assigned() -> int:
        nonlocal epoch
        answer = beat(client, "late", None, epoch=epoch)
        assert answer["error_code"] == "none"
        epoch = answer["member_epoch"]
        assignment = answer["assignment"]
        return 0 if assignment is None else len(assignment["topic_partitions"])

    wait_for(lambda: assigned() == 1 + TOPICS // 5, "all the topics of the expression", timeout_s=100)
    client.close()


def test_sigterm_stops_a_broker_busy_with_expressions(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        client = WireClient(broker.bootstrap)
        new = {"name": NAME, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        client.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [new], "timeout": 60_000, "validate_only": False})
        wait_for(lambda: _coordinator_error(client) == "none", "a coordinator")
        for number, regex in enumerate((*EVIL, SLOW)):
            assert beat(client, f"evil-{number}", regex)["error_code"] == "none"
        client.close()
        assert broker.sigterm() == 0
        assert "Traceback" not in broker.log()
