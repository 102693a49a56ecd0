from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headrace.cluster.store import MetadataStore
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.config import BrokerConfig
from tests.unit.cluster.clusters import Cluster, started


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path / "metadata.db", durable=False)
    yield store
    await store.close()


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig()


@pytest.fixture
async def cluster(store: MetadataStore, config: BrokerConfig) -> Cluster:
    return await started(store, config)
