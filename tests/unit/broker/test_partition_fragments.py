"""Hand-written encoders of partitions produce the same bytes as the general encoder."""

from typing import Any

from headrace.broker.apis.partition_fragments import DESCRIBED, BrokersSeen, Layout, encode_partitions, metadata_layout
from headrace.cluster.image import PartitionImage
from headrace.errors import ErrorCode
from headrace.wire.apis import ApiKey, item_encoder
from tests.unit.broker.asking import versions_around

PARTITIONS = (
    PartitionImage(0, 5, (0, 1), (0,)),
    PartitionImage(0, 5, (0, 1), (0,)),
    PartitionImage(1, 6, (1, 0, 7), (1, 0)),
    PartitionImage(7, 0, (7,), ()),
    PartitionImage(-1, 3, (), ()),
)
BROKERS = BrokersSeen(alive=frozenset((0, 1)), reachable=frozenset((0,)))


def described(index: int, partition: PartitionImage, no_listener: ErrorCode) -> dict[str, Any]:
    error = {0: ErrorCode.none, 1: no_listener}.get(partition.leader, ErrorCode.leader_not_available)
    return {
        "error_code": error,
        "partition_index": index,
        "leader_id": -1 if error else partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": [replica for replica in partition.replicas if replica == 7],
        "eligible_leader_replicas": (),
        "last_known_elr": (),
    }


def check(api_key: ApiKey, version: int, layout: Layout, first: int) -> None:
    expected = bytearray()
    encode = item_encoder(api_key, version, "topics", "partitions")
    for index, partition in enumerate(PARTITIONS, first):
        encode(expected, described(index, partition, layout.no_listener))
    assert encode_partitions(PARTITIONS, layout, BROKERS, first) == (len(PARTITIONS), bytes(expected)), (version, first)


def test_metadata_partitions() -> None:
    for version in versions_around(ApiKey.METADATA, 5, 6, 7, 9):
        check(ApiKey.METADATA, version, metadata_layout(version), 0)


def test_describe_topic_partitions() -> None:
    for first in (0, 2_000):
        check(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, DESCRIBED, first)
