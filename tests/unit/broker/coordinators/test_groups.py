"""The group APIs are advertised before their handlers are created."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.committed_offsets import OffsetApis
from headrace.broker.apis.consumer_groups import ConsumerGroupApis
from headrace.broker.apis.group_admin import GroupAdminApis
from headrace.broker.apis.groups import GroupApis
from headrace.broker.coordinators.groups import CLASSIC_APIS, CONSUMER_APIS, Groups
from headrace.cluster.image import MetadataImage, PartitionImage, TopicImage
from headrace.errors import ErrorCode, KafkaError


def test_every_advertised_group_api_has_a_handler() -> None:
    nothing: Any = None
    families = (GroupApis(nothing, nothing, nothing, nothing), GroupAdminApis(nothing), OffsetApis(nothing, nothing))
    assert {key for family in families for key in family.routes()} == set(CLASSIC_APIS)
    assert set(ConsumerGroupApis(nothing, nothing).routes()) == set(CONSUMER_APIS)


@pytest.mark.parametrize(
    ("isr", "is_led", "is_offline", "is_measured"),
    [
        ((3,), True, False, True),
        ((3, 5), False, False, True),
        ((5,), False, False, False),  # it is being added, or its fetcher has stopped
        ((3, 5), False, True, False),
    ],
)
def test_lag_is_measured_in_partitions_whose_end_is_known(
    isr: tuple[int, ...], is_led: bool, is_offline: bool, is_measured: bool
) -> None:
    def readable(*_: object) -> str:
        if is_offline:
            raise KafkaError(ErrorCode.kafka_storage_error, "offline")
        return "followed"

    groups: Any = SimpleNamespace(
        _replicas=SimpleNamespace(find=lambda *_: "led" if is_led else None, readable=readable, peers=object()),
        _cache=SimpleNamespace(
            image=MetadataImage().with_topics([TopicImage("t", UUID(int=1), (PartitionImage(5, 0, (3, 5), isr),))])
        ),
        _config=SimpleNamespace(node_id=3),
    )
    assert (Groups._replica(groups, "t", 0) is not None) is is_measured
    for topic, partition in (("t", 1), ("unknown", 0)):
        assert (Groups._replica(groups, topic, partition) is not None) is is_led
