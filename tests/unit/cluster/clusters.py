"""Small clusters for the tests of this room."""

from random import Random

from headrace.cluster.controller import Controller
from headrace.cluster.image import BrokerImage, Endpoint, MetadataImage
from headrace.cluster.store import MetadataStore
from headrace.config import BrokerConfig

NOW_MS = 1_700_000_000_000


def broker(broker_id: int = 0, rack: str | None = None) -> BrokerImage:
    return BrokerImage(broker_id, (Endpoint("PLAINTEXT", f"host{broker_id}", 9092, "PLAINTEXT"),), rack)


def cluster_of(*ids: int) -> MetadataImage:
    return MetadataImage(controller_epoch=1).with_brokers(broker(each) for each in ids)


async def started(store: MetadataStore, config: BrokerConfig | None = None) -> Controller:
    controller = Controller(store, config or BrokerConfig(), now_ms=lambda: NOW_MS, random=Random(1))
    await controller.start()
    await controller.register(broker())
    return controller
