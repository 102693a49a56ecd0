"""Members with impossible timeouts."""

import uuid
from typing import Any

from headrace.wire.apis import ApiKey
from tests.hostile.conftest import Bystander
from tests.support.waiting import wait_for
from tests.support.wire_client import WireClient

SUBSCRIPTION = b"\x00\x01\x00\x00\x00\x01\x00\x05topic\xff\xff\xff\xff\x00\x00\x00\x00"


class Member:
    """A static member of a classic group."""

    def __init__(self, address: tuple[str, int], group: str, instance: str, rebalance_timeout_ms: int) -> None:
        self._client = WireClient("{}:{}".format(*address))
        self._group = group
        self._instance = instance
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self.member_id = ""
        self.generation = -1

    def send_join(self) -> None:
        self._client.send(
            ApiKey.JOIN_GROUP,
            7,
            {
                "group_id": self._group,
                "session_timeout": 10_000,
                "rebalance_timeout": self._rebalance_timeout_ms,
                "member_id": self.member_id,
                "group_instance_id": self._instance,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
            },
        )

    def joined(self) -> str:
        answer = self._client.receive(ApiKey.JOIN_GROUP, 7)
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        return str(answer["error_code"])

    def join(self) -> str:
        self.send_join()
        return self.joined()

    def sync(self, *assigned: "Member") -> None:
        self._client.send(
            ApiKey.SYNC_GROUP,
            5,
            {
                "group_id": self._group,
                "generation_id": self.generation,
                "member_id": self.member_id,
                "group_instance_id": self._instance,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": [{"member_id": item.member_id, "assignment": b"x"} for item in assigned],
            },
        )

    def synced(self) -> str:
        return str(self._client.receive(ApiKey.SYNC_GROUP, 5)["error_code"])

    def ask(self, api: ApiKey, version: int, **message: Any) -> dict[str, Any]:
        return self._client.ask(api, version, {"group_id": self._group, **message})

    def has_coordinator(self) -> bool:
        """Also creates the offsets topic."""
        answer = self._client.ask(ApiKey.FIND_COORDINATOR, 4, {"coordinator_keys": [self._group]})
        return bool(answer["coordinators"][0]["error_code"] == "none")

    def leave(self) -> None:
        leaver = {"member_id": self.member_id, "group_instance_id": self._instance, "reason": "bye"}
        self.ask(ApiKey.LEAVE_GROUP, 5, member_id="", members=[leaver])

    def close(self) -> None:
        self._client.close()


def test_a_stuck_group_keeps_nobody_waiting(address: tuple[str, int], bystander: Bystander) -> None:
    group = f"hostile-{uuid.uuid4().hex[:12]}"
    patient = Member(address, group, "patient", 60_000)
    hasty = Member(address, group, "hasty", -1_000_000)
    wait_for(patient.has_coordinator, "a coordinator")
    wait_for(lambda: patient.join() == "none", "a member")
    hasty.send_join()
    wait_for(lambda: patient.ask(ApiKey.HEARTBEAT, 4, **_beat(patient))["error_code"] != "none", "a rebalance")
    assert (patient.join(), hasty.joined()) == ("none", "none")
    patient.sync(patient, hasty)
    hasty.sync()
    assert (patient.synced(), hasty.synced()) == ("none", "none")
    # the other member is static, so the group waits for it until its session times out
    patient.leave()
    bystander.check()
    hasty.close()
    patient.close()


def _beat(member: Member) -> dict[str, Any]:
    return {"generation_id": member.generation, "member_id": member.member_id, "group_instance_id": "patient"}
