"""Taking office and leaving it, with every write fenced."""

import json

import pytest

from headrace.cluster import znodes
from headrace.cluster.offices import candidate
from headrace.errors import ErrorCode, KafkaError
from headrace.types import TopicPartition
from headrace.wire.controls.leader_and_isr import LeaderAndIsrRequest
from headrace.wire.controls.update_metadata import UpdateMetadataRequest
from tests.unit.cluster.offices.office_world import OfficeWorld


async def test_the_first_controller_takes_office_and_creates_the_node_of_features(world: OfficeWorld) -> None:
    await world.stand()
    assert json.loads((await world.tree.get("/controller")).data)["brokerid"] == 1
    assert (await world.tree.get("/controller_epoch")).data == b"1"
    assert world.candidate.current().epoch == 1
    assert json.loads((await world.tree.get("/feature")).data) == {"features": {}, "version": 2, "status": 1}


async def test_every_election_raises_the_epoch(world: OfficeWorld) -> None:
    await world.tree.create("/controller_epoch", b"7")
    await world.stand()
    assert world.candidate.current().epoch == 8
    assert (await world.tree.get("/controller_epoch")).data == b"8"


async def test_an_office_is_taken_only_when_its_holder_is_gone(world: OfficeWorld) -> None:
    await world.tree.create("/controller", znodes.encode_controller(2, 0))
    await world.stand()
    with pytest.raises(KafkaError) as caught:
        world.candidate.current()
    assert caught.value.code is ErrorCode.not_controller
    await world.tree.delete("/controller")
    await world.rest()
    assert world.candidate.current().epoch == 1


async def test_no_broker_takes_office_during_a_migration_to_kraft(world: OfficeWorld) -> None:
    await world.tree.create("/migration", b"{}")
    await world.stand()
    assert world.candidate.term is None
    assert await world.tree.exists("/controller") is None


async def test_brokers_learn_of_each_other_before_they_lead(world: OfficeWorld) -> None:
    await world.create_topic("t", (2, 3))
    await world.stand()
    kinds = [type(message) for to, message in world.orders if to == 2]
    assert kinds[0] is UpdateMetadataRequest
    first = world.sent(UpdateMetadataRequest, 2)[0]
    assert {item.id for item in first.live_brokers} == {1, 2, 3}
    registered = (await world.tree.get("/brokers/ids/2")).stat.czxid
    assert (first.controller_id, first.controller_epoch, first.broker_epoch) == (1, 1, registered)
    assert LeaderAndIsrRequest in kinds


async def depose(world: OfficeWorld) -> None:
    """Let broker 2 take office while broker 1 sleeps: it does not notice."""
    world.tree.forget_watches()
    await world.tree.delete("/controller")
    await world.tree.create("/controller", znodes.encode_controller(2, 0))
    await world.tree.set("/controller_epoch", b"2")


async def test_a_deposed_controller_writes_and_orders_nothing(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (1, 2))
    await depose(world)
    world.orders.clear()
    with pytest.raises(KafkaError) as caught:
        await world.candidate.current().ask("shut down", lambda machine: machine.shut_down(1, -1))
    assert caught.value.code is ErrorCode.not_controller
    assert not world.orders
    assert (await world.state("t", 0)).leader == 1


async def test_a_controller_that_fails_leaves_office_and_may_take_it_again(
    world: OfficeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candidate, "_PAUSE_S", 0)
    await world.stand()
    await world.create_topic("t", (1, 2))
    # Nobody but the controller may write it.
    path = znodes.state_path("t", 0)
    await world.tree.set(path, (await world.tree.get(path)).data)
    with pytest.raises(KafkaError) as caught:
        await world.candidate.current().ask("shut down", lambda machine: machine.shut_down(1, -1))
    assert caught.value.code is ErrorCode.not_controller
    await world.rest()
    assert (await world.tree.get("/controller_epoch")).data > b"1"


async def test_a_deposed_controller_leaves_office(world: OfficeWorld) -> None:
    await world.stand()
    await world.tree.delete("/controller")
    await world.tree.create("/controller", znodes.encode_controller(2, 0))
    await world.rest()
    assert world.candidate.term is None


async def test_a_controller_that_stops_leaves_the_office_free(world: OfficeWorld) -> None:
    await world.stand()
    await world.candidate.close()
    assert await world.tree.exists("/controller") is None


async def test_the_next_controller_goes_on_with_an_unfinished_reassignment(world: OfficeWorld) -> None:
    await world.stand()
    await world.create_topic("t", (1, 2))
    t0 = TopicPartition("t", 0)
    await world.candidate.current().ask("reassignment", lambda machine: machine.reassign({t0: (2, 3)}))
    await world.candidate.expire()
    await world.tree.delete("/controller")
    await world.rest()
    assert world.candidate.current().epoch == 2
    assert world.candidate.current().machine.context.moving == {t0}
    assert json.loads((await world.tree.get("/brokers/topics/t")).data)["adding_replicas"] == {"0": [3]}
