"""Settings of groups changed while a broker runs."""

from typing import Any

from headrace.testing import Broker
from headrace.wire.apis import ApiKey
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

_BROKER = 4
_SET = 0


def heartbeat(client: WireClient, group: str, member: str, epoch: int = 0) -> Any:
    message = {
        "group_id": group,
        "member_id": member,
        "member_epoch": epoch,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["t"],
        "topic_partitions": [],
    }
    client.send(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, message)
    return client.receive(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1)


def set_interval(client: WireClient, value: str) -> None:
    config = {"name": "group.consumer.assignment.interval.ms", "config_operation": _SET, "value": value}
    resource = {"resource_type": _BROKER, "resource_name": "", "configs": [config]}
    client.send(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": [resource], "validate_only": False})
    (answer,) = client.receive(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1)["responses"]
    assert answer["error_code"] == "none", answer


def test_the_interval_between_assignments_changes_for_all_groups_at_once() -> None:
    with Broker({"group.consumer.assignment.interval.ms": "600000"}) as broker:
        client = WireClient(broker.bootstrap)
        client.send(ApiKey.FIND_COORDINATOR, 3, {"key": "g"})
        client.receive(ApiKey.FIND_COORDINATOR, 3)
        wait_for(lambda: heartbeat(client, "g", "one")["error_code"] == "none", "the coordinator")
        assert heartbeat(client, "g", "two")["member_epoch"] == 2, "too early for the next assignment"
        set_interval(client, "0")
        assert heartbeat(client, "g", "two", 2)["member_epoch"] == 3
        set_interval(client, "600000")
        assert heartbeat(client, "g", "three")["member_epoch"] == 3
        client.close()
