from collections.abc import AsyncIterator, Awaitable, Sequence
from pathlib import Path

import pytest

from headrace.cluster.controller import Controller, PartitionChange
from headrace.cluster.image import ConfigResource, TopicImage
from headrace.cluster.store import MetadataStore
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.config import BrokerConfig
from tests.unit.cluster.clusters import started


class Recorder:
    """A listener that remembers what it was told."""

    def __init__(self) -> None:
        self.partitions: list[PartitionChange] = []
        self.deleted: list[TopicImage] = []
        self.configs: list[ConfigResource] = []

    def check_directories(self) -> None:
        pass

    def make_logs(self, changes: Sequence[PartitionChange]) -> Awaitable[None] | None:
        return None

    def on_partitions(self, changes: Sequence[PartitionChange]) -> None:
        self.partitions.extend(changes)

    def on_topics_deleted(self, topics: Sequence[TopicImage]) -> None:
        self.deleted.extend(topics)

    def on_configs_changed(self, resources: Sequence[ConfigResource]) -> None:
        self.configs.extend(resources)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    yield store
    await store.close()


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig()


@pytest.fixture
async def controller(store: MetadataStore, config: BrokerConfig) -> Controller:
    return await started(store, config)


@pytest.fixture
def recorder(controller: Controller) -> Recorder:
    recorder = Recorder()
    controller.attach(recorder)
    return recorder
