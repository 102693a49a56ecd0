"""What a controller does about changes in the tree."""

import json
from collections.abc import Sequence

import pytest

from headrace.cluster import znodes
from headrace.cluster.image import Endpoint
from headrace.cluster.store import Create, Delete, Done, Operation, StoreError
from headrace.errors import ErrorCode
from headrace.types import TopicPartition
from headrace.wire.controls.leader_and_isr import LeaderAndIsrRequest
from headrace.wire.controls.stop_replica import StopReplicaRequest
from headrace.wire.controls.update_metadata import UpdateMetadataRequest
from tests.unit.cluster.clusters import NOW_MS, broker
from tests.unit.cluster.offices.office_world import OfficeWorld

T0 = TopicPartition("t", 0)


async def test_a_new_topic_gets_leaders(world: OfficeWorld) -> None:
    await world.stand()
    topic_id = await world.create_topic("t", (2, 3), (3, 1))
    assert [(await world.state("t", index)).leader for index in (0, 1)] == [2, 3]
    (message,) = world.sent(LeaderAndIsrRequest, 3)
    (topic,) = message.topic_states
    assert topic.topic_id == topic_id
    state = topic.partition_states[0]
    assert (state.leader, state.leader_epoch, state.isr, state.replicas, state.is_new) == (2, 0, (2, 3), (2, 3), True)
    assert [(item.broker_id, item.host_name, item.port) for item in message.live_leaders] == [
        (2, "host2", 9092),
        (3, "host3", 9092),
    ]


async def test_a_topic_without_an_id_gets_one(world: OfficeWorld) -> None:
    await world.tree.create("/brokers/topics/old", b'{"version":1,"partitions":{"0":[1]}}')
    await world.stand()
    assert len(json.loads((await world.tree.get("/brokers/topics/old")).data)["topic_id"]) == 22


async def test_a_broker_that_gets_another_address_keeps_its_orders(world: OfficeWorld) -> None:
    await world.stand()
    moved = broker(2)._replace(endpoints=(Endpoint("PLAINTEXT", "host22", 9092, "PLAINTEXT"),))
    await world.tree.set("/brokers/ids/2", znodes.encode_broker(moved, NOW_MS))
    await world.rest()
    assert world.sent(UpdateMetadataRequest, 3)[-1].live_brokers[1].endpoints[0].host == "host22"
    await world.create_topic("t", (2, 3))
    assert len(world.sent(LeaderAndIsrRequest, 22)) == 1


async def test_a_deleted_topic_disappears_from_clients_then_from_brokers_and_then_from_the_tree(
    world: OfficeWorld,
) -> None:
    await world.stand()
    await world.create_topic("t", (2, 3))
    world.orders.clear()
    await world.tree.create("/config/topics/t", b"{}")
    await world.tree.create("/admin/delete_topics/t")
    await world.rest()
    first = next(message for to, message in world.orders if to == 3)
    assert isinstance(first, UpdateMetadataRequest)
    assert first.topic_states[0].partition_states[0].leader == -2
    stops = [message.topic_states[0].partition_states[0] for message in world.sent(StopReplicaRequest, 3)]
    assert [stop.delete_partition for stop in stops] == [False, True]
    for path in ("/brokers/topics/t", "/config/topics/t", "/admin/delete_topics/t"):
        assert await world.tree.exists(path) is None


async def test_topics_deleted_together_are_removed_with_their_settings_in_one_write(
    world: OfficeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.stand()
    topics = [f"t{number}" for number in range(5)]
    for topic in topics:
        await world.create_topic(topic, (2, 3))
    for topic in topics[1:]:
        await world.tree.create(f"/config/topics/{topic}", b"{}")
    await world.tree.multi([Create(f"/admin/delete_topics/{topic}") for topic in topics])
    writes: list[list[list[str]]] = []
    multi_many = world.tree.multi_many

    async def noted(batches: Sequence[Sequence[Operation]]) -> list[list[Done] | StoreError]:
        removals = [[operation.path for operation in batch if isinstance(operation, Delete)] for batch in batches]
        writes.append([removal for removal in removals if removal])
        return await multi_many(batches)

    monkeypatch.setattr(world.tree, "multi_many", noted)
    await world.rest()
    (removals,) = [write for write in writes if write]
    for topic, removal in zip(topics, removals, strict=True):
        assert removal[-1] == f"/admin/delete_topics/{topic}"
        assert f"/brokers/topics/{topic}" in removal
        assert (f"/config/topics/{topic}" in removal) is (topic != "t0")
    assert await world.tree.children("/brokers/topics") == []


async def test_the_deletion_of_a_topic_that_does_not_exist_is_forgotten(world: OfficeWorld) -> None:
    await world.stand()
    await world.tree.create("/admin/delete_topics/t")
    await world.rest()
    assert await world.tree.children("/admin/delete_topics") == []


async def test_the_obsolete_node_for_reassignments_is_obeyed_and_removed(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (1, 2))
    await world.tree.create("/admin/reassign_partitions", znodes.encode_reassignments({T0: (2, 1)}))
    await world.rest()
    assert json.loads((await world.tree.get("/brokers/topics/t")).data)["partitions"] == {"0": [2, 1]}
    assert await world.tree.exists("/admin/reassign_partitions") is None


async def test_the_obsolete_node_keeps_what_is_not_moved_yet(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (1, 2), (1, 2))
    moves = {T0: (2, 1), TopicPartition("t", 1): (2, 3)}
    await world.tree.create("/admin/reassign_partitions", znodes.encode_reassignments(moves))
    await world.rest()
    left = znodes.decode_reassignments((await world.tree.get("/admin/reassign_partitions")).data)
    assert left == {TopicPartition("t", 1): (2, 3)}


async def test_a_request_replaces_a_move_in_the_obsolete_node(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (1, 2), (1, 2))
    moves = {T0: (2, 3), TopicPartition("t", 1): (2, 3)}
    await world.tree.create("/admin/reassign_partitions", znodes.encode_reassignments(moves))
    await world.rest()
    term = world.candidate.current()
    await term.ask("reassignment", lambda machine: machine.reassign({T0: (1, 3)}))
    term.refresh()
    await world.rest()
    left = znodes.decode_reassignments((await world.tree.get("/admin/reassign_partitions")).data)
    assert left == {TopicPartition("t", 1): (2, 3)}
    assert term.machine.context.assignment(T0).target == (1, 3)


async def test_the_obsolete_node_for_elections_is_obeyed_and_removed(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (2, 3))
    await world.candidate.current().ask("shut down", lambda machine: machine.shut_down(2, -1))
    assert (await world.state("t", 0)).leader == 3
    await world.tree.delete("/brokers/ids/2")
    await world.register(2)
    await world.rest()
    state = await world.state("t", 0)
    await world.tree.set(
        znodes.state_path("t", 0), znodes.encode_leader_state(state._replace(isr=(3, 2))), state.version
    )
    notified = b'{"version":1,"partitions":[{"topic":"t","partition":0}]}'
    await world.tree.create("/isr_change_notification/isr_change_", notified, sequential=True)
    await world.rest()
    await world.tree.create("/admin/preferred_replica_election", notified)
    await world.rest()
    assert (await world.state("t", 0)).leader == 2
    assert await world.tree.exists("/admin/preferred_replica_election") is None
    assert await world.tree.children("/isr_change_notification") == []


async def test_replicas_in_failed_directories_lose_their_partitions(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (2, 3))
    world.errors[2] = ErrorCode.kafka_storage_error
    await world.tree.create(znodes.LOG_DIR_EVENT, znodes.encode_log_dir_failure(2), sequential=True)
    await world.rest()
    state = await world.state("t", 0)
    assert (state.leader, state.isr) == (3, (3,))
    assert await world.tree.children("/log_dir_event_notification") == []


async def test_everything_is_read_again_after_a_lost_connection(world: OfficeWorld) -> None:
    await world.stand()
    world.tree.forget_watches()
    await world.create_topic("t", (2, 3))
    assert await world.tree.exists(znodes.state_path("t", 0)) is None
    await world.stand()
    assert (await world.state("t", 0)).leader == 2


async def test_malformed_notifications_do_not_end_the_term(world: OfficeWorld) -> None:
    await world.stand()
    await world.tree.create("/isr_change_notification/isr_change_0000000001", b"{")
    await world.tree.create("/log_dir_event_notification/log_dir_event_0000000001", b"[]")
    await world.rest()
    assert await world.tree.children("/isr_change_notification") == []
    assert await world.tree.children("/log_dir_event_notification") == []
    await world.create_topic("t", (2, 3))
    assert (await world.state("t", 0)).leader == 2


async def test_malformed_topics_are_left_out(world: OfficeWorld) -> None:
    malformed = [b"", b"{", b'{"partitions":{"0":"a"}}', b'{"partitions":[1]}']
    for number, data in enumerate(malformed):
        await world.tree.create(f"/brokers/topics/bad{number}", data)
    await world.stand()
    for number, data in enumerate(malformed):
        await world.tree.create(f"/brokers/topics/worse{number}", data)
    await world.create_topic("t", (2, 3))
    assert (await world.state("t", 0)).leader == 2
    for number, data in enumerate(malformed):
        assert (await world.tree.get(f"/brokers/topics/bad{number}")).data == data


async def test_a_topic_with_a_malformed_state_is_left_out(world: OfficeWorld, caplog: pytest.LogCaptureFixture) -> None:
    await world.stand()
    await world.create_topic("bad", (2, 3), (3, 2))
    await world.create_topic("t", (2, 3))
    await world.tree.set(znodes.state_path("bad", 0), b"?")
    await world.tree.delete("/controller")
    await world.rest()
    await world.tree.delete("/brokers/ids/2")
    await world.rest()
    assert (await world.state("t", 0)).leader == 3
    assert (await world.tree.get(znodes.state_path("bad", 0))).data == b"?"
    assert "ignores the malformed node /brokers/topics/bad/partitions/0/state: correct or delete it" in caplog.text


async def test_a_malformed_registration_is_left_out(world: OfficeWorld) -> None:
    await world.tree.create("/brokers/ids/9", b"?")
    await world.tree.create("/brokers/ids/nine", b"{}")
    await world.stand()
    await world.create_topic("t", (9, 3))
    assert (await world.state("t", 0)).isr == (3,)
