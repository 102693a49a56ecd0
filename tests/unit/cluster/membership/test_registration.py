import asyncio
import json

import pytest

from headrace.cluster.membership.registration import register
from headrace.errors import ErrorCode, KafkaError
from tests.unit.cluster.clusters import NOW_MS, broker
from tests.unit.cluster.membership.watched_store import WatchedMemory

PATH = "/brokers/ids/4"


async def test_a_registration_is_an_ephemeral_node_of_version_1(tree: WatchedMemory) -> None:
    epoch = await register(tree, broker(4), now_ms=NOW_MS, patience_s=0)
    node = await tree.get(PATH)
    assert (node.stat.version, node.stat.owner, node.stat.czxid) == (1, tree.session, epoch)
    assert json.loads(node.data)["endpoints"] == ["PLAINTEXT://host4:9092"]


async def test_an_id_that_stays_taken_is_refused(tree: WatchedMemory) -> None:
    await tree.create(PATH, b"{}")
    with pytest.raises(KafkaError, match="Another broker with id 4") as caught:
        await register(tree, broker(4), now_ms=NOW_MS, patience_s=0.01)
    assert caught.value.code is ErrorCode.duplicate_broker_registration


async def test_the_registration_of_a_dead_process_is_waited_for(tree: WatchedMemory) -> None:
    await tree.create(PATH, b"{}")
    registering = asyncio.ensure_future(register(tree, broker(4), now_ms=NOW_MS, patience_s=60))
    await asyncio.sleep(0)
    await tree.delete(PATH)
    await registering
    assert (await tree.get(PATH)).stat.owner == tree.session


async def test_a_broker_that_its_own_session_has_registered_keeps_its_epoch(tree: WatchedMemory) -> None:
    epoch = await register(tree, broker(4), now_ms=NOW_MS, patience_s=0)
    assert await register(tree, broker(4), now_ms=NOW_MS, patience_s=0) == epoch
