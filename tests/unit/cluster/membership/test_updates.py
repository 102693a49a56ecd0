import uuid
from collections.abc import Sequence

from headrace.cluster.commands import DURING_DELETION, UpdateMetadata
from headrace.cluster.image import MetadataImage, PartitionImage, TopicImage
from headrace.cluster.membership.updates import UNASSIGNED, update_of
from headrace.slices import finish
from headrace.wire.controls.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)

ID, OTHER_ID = uuid.UUID(int=5), uuid.UUID(int=6)
LED = PartitionImage(1, 3, (1, 2), (1,), 9)


def state(index: int, leader: int = 1) -> UpdateMetadataPartitionState:
    return UpdateMetadataPartitionState(
        partition_index=index,  # type: ignore[arg-type]
        controller_epoch=1,  # type: ignore[arg-type]
        leader=leader,  # type: ignore[arg-type]
        leader_epoch=3,  # type: ignore[arg-type]
        isr=(1,),  # type: ignore[arg-type]
        zk_version=9,  # type: ignore[arg-type]
        replicas=(1, 2),  # type: ignore[arg-type]
    )


async def update(
    image: MetadataImage,
    states: Sequence[UpdateMetadataPartitionState] = (),
    topic_id: uuid.UUID = ID,
    brokers: Sequence[UpdateMetadataBroker] = (),
) -> UpdateMetadata:
    topics = (UpdateMetadataTopicState(topic_name="t", topic_id=topic_id, partition_states=tuple(states)),)
    request = UpdateMetadataRequest(
        controller_id=1,  # type: ignore[arg-type]
        controller_epoch=8,  # type: ignore[arg-type]
        topic_states=topics if states else (),
        live_brokers=tuple(brokers),
    )
    return await finish(update_of(request, image))


def image_of(*partitions: PartitionImage) -> MetadataImage:
    return MetadataImage().with_topics([TopicImage("t", ID, partitions)])


async def test_partitions_that_are_not_in_the_request_stay() -> None:
    old = PartitionImage(2, 1, (2,), (2,))
    changes = await update(image_of(old, old), [state(1)])
    assert changes.topics[0].partitions == (old, LED)


async def test_a_partition_of_a_new_topic_that_was_not_announced_has_no_leader() -> None:
    changes = await update(MetadataImage(), [state(1)])
    assert changes.topics == (TopicImage("t", ID, (UNASSIGNED, LED)),)
    assert changes.deleted == ()


async def test_a_topic_without_partitions_is_deleted() -> None:
    changes = await update(image_of(LED, LED), [state(0, DURING_DELETION), state(1, DURING_DELETION)])
    assert (changes.topics, changes.deleted) == ((), ("t",))


async def test_a_topic_that_loses_its_last_partition_becomes_shorter() -> None:
    changes = await update(image_of(LED, LED), [state(1, DURING_DELETION)])
    assert changes.topics[0].partitions == (LED,)


async def test_a_topic_with_another_id_replaces_the_old_one() -> None:
    changes = await update(image_of(LED, LED), [state(0)], OTHER_ID)
    assert changes.deleted == ("t",)
    assert changes.topics == (TopicImage("t", OTHER_ID, (LED,)),)


async def test_the_controller_and_the_live_brokers_are_those_of_the_request() -> None:
    endpoint = UpdateMetadataEndpoint(port=9092, host="h", listener="IN", security_protocol=0)  # type: ignore[arg-type]
    broker = UpdateMetadataBroker(id=2, endpoints=(endpoint,), rack="r")  # type: ignore[arg-type]
    changes = await update(image_of(LED), brokers=[broker])
    assert (changes.controller_id, changes.controller_epoch, changes.topics) == (1, 8, ())
    (found,) = changes.brokers
    assert (found.id, found.rack, found.endpoint("IN")) == (2, "r", ("IN", "h", 9092, "PLAINTEXT"))
