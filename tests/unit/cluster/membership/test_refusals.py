import json

import pytest

from headrace.cluster import znodes
from headrace.cluster.image import BrokerImage, Endpoint
from headrace.cluster.membership.refusals import check_cluster
from headrace.errors import KafkaError
from tests.unit.cluster.clusters import NOW_MS, broker
from tests.unit.cluster.membership.watched_store import WatchedMemory


async def check(tree: WatchedMemory, listener: str = "PLAINTEXT") -> str:
    return await check_cluster(tree, broker_id=4, listener=listener)


async def refusal(tree: WatchedMemory, listener: str = "PLAINTEXT") -> str:
    with pytest.raises(KafkaError) as caught:
        await check(tree, listener)
    return str(caught.value)


async def test_a_cluster_without_obstacles_is_joined(tree: WatchedMemory) -> None:
    await tree.create("/brokers/ids/1", znodes.encode_broker(broker(1), NOW_MS))
    assert await check(tree) == "c"


async def test_acls_are_refused(tree: WatchedMemory) -> None:
    await tree.create("/kafka-acl")
    await tree.create("/kafka-acl/Topic")
    assert await check(tree) == "c"  # an authorizer without ACLs
    await tree.create("/kafka-acl/Topic/t", b"{}")
    assert "has ACLs (/kafka-acl/Topic)" in await refusal(tree)


async def test_a_migration_to_kraft_is_refused(tree: WatchedMemory) -> None:
    await tree.create("/migration", b"{}")
    assert "is migrating from ZooKeeper to KRaft" in await refusal(tree)


async def test_a_kraft_controller_is_refused(tree: WatchedMemory) -> None:
    await tree.create("/controller", b'{"version":2,"brokerid":3000,"kraftControllerEpoch":7}')
    assert "is migrating from ZooKeeper to KRaft" in await refusal(tree)


async def test_an_old_inter_broker_protocol_is_refused(tree: WatchedMemory) -> None:
    registration = json.loads(znodes.encode_broker(broker(1), NOW_MS)) | {"version": 4}
    await tree.create("/brokers/ids/1", json.dumps(registration).encode())
    assert "broker 1 uses an inter-broker protocol older than 2.7" in await refusal(tree)


async def test_another_listener_between_brokers_is_refused(tree: WatchedMemory) -> None:
    await tree.create("/brokers/ids/1", znodes.encode_broker(broker(1), NOW_MS))
    assert "broker 1 has no listener INTERNAL, only PLAINTEXT" in await refusal(tree, "INTERNAL")


async def test_an_encrypted_listener_between_brokers_is_refused(tree: WatchedMemory) -> None:
    secure = BrokerImage(1, (Endpoint("PLAINTEXT", "h", 9092, "SSL"),))
    await tree.create("/brokers/ids/1", znodes.encode_broker(secure, NOW_MS))
    reason = await refusal(tree)
    assert "broker 1 uses SSL on its listener PLAINTEXT" in reason
    assert "Set inter.broker.listener.name to a PLAINTEXT listener on all brokers" in reason
