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


@pytest.mark.parametrize(
    "update",
    [
        FeatureUpdate("other", 1, UpgradeType.UPGRADE),
        FeatureUpdate(NAME, 3, UpgradeType.UPGRADE),
        FeatureUpdate(NAME, -1, UpgradeType.SAFE_DOWNGRADE),
        FeatureUpdate(NAME, 1, UpgradeType.UPGRADE),
        FeatureUpdate(NAME, 1, 0),
        FeatureUpdate(NAME, 1, 4),
    ],
    ids=["unknown", "too high", "negative", "downgrade without permission", "no type", "unknown type"],
)
def test_invalid_updates_are_refused(update: FeatureUpdate) -> None:
    with pytest.raises(KafkaError) as caught:
        features().check(update)
    assert caught.value.code is ErrorCode.invalid_update_version


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
