from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.cluster import znodes
from headrace.cluster.failures import StoreFailures
from headrace.cluster.features import Features, FeatureUpdate, UpgradeType
from headrace.cluster.store import MalformedNodeError
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.errors import ErrorCode, KafkaError

NAME = "transaction.version"


def features() -> Features:
    nothing: EmbeddedStore = None  # type: ignore[assignment]
    return Features(nothing, StoreFailures())


def test_a_new_cluster_has_the_newest_transaction_version() -> None:
    assert (features().transaction_version, features().epoch) == (2, 0)


def test_invalid_updates_are_refused() -> None:
    updates = {
        "unknown": FeatureUpdate("other", 1, UpgradeType.UPGRADE),
        "too high": FeatureUpdate(NAME, 3, UpgradeType.UPGRADE),
        "negative": FeatureUpdate(NAME, -1, UpgradeType.SAFE_DOWNGRADE),
        "downgrade without permission": FeatureUpdate(NAME, 1, UpgradeType.UPGRADE),
        "no type": FeatureUpdate(NAME, 1, 0),
        "unknown type": FeatureUpdate(NAME, 1, 4),
    }
    for case, update in updates.items():
        with pytest.raises(KafkaError) as caught:
            features().check(update)
        assert caught.value.code is ErrorCode.invalid_update_version, case


async def test_levels_are_durable(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as executor:
        store = EmbeddedStore(tmp_path / "store", executor=executor, durable=False)
        changed, read = Features(store, StoreFailures()), Features(store, StoreFailures())
        await changed.update([FeatureUpdate(NAME, 1, UpgradeType.SAFE_DOWNGRADE)])
        await changed.update([FeatureUpdate(NAME, 0, UpgradeType.UNSAFE_DOWNGRADE)])
        await read.load()
        await store.close()
    assert (read.transaction_version, read.epoch) == (changed.transaction_version, changed.epoch) == (0, 2)


async def test_a_damaged_node_is_named(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "store", durable=False)
    await store.create(znodes.FEATURES, b"{")
    with pytest.raises(MalformedNodeError, match="/feature: the node cannot be read"):
        await Features(store, StoreFailures()).load()
    await store.close()
