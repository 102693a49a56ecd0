"""The cluster's features and their finalized levels (KIP-584), kept in the metadata store."""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple

from headrace.cluster import znodes
from headrace.cluster.failures import StoreFailures
from headrace.cluster.loading import decoded
from headrace.cluster.store import Create, MetadataStore, NoNodeError, Set
from headrace.errors import ErrorCode, KafkaError

TRANSACTION_VERSION: Final = "transaction.version"
SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {TRANSACTION_VERSION: (0, 2)}
"""Lowest and highest supported level, by feature."""
_DEFAULTS: Final = {TRANSACTION_VERSION: 2}
"""Levels of a cluster in which they were never changed."""
WITH_ZOOKEEPER: Final = {TRANSACTION_VERSION: 0}
"""Levels of a cluster with ZooKeeper, in which Kafka does not support `transaction.version`."""


class UpgradeType(IntEnum):
    """The direction of an update, as in UpdateFeatures."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """A level to finalize; 0 disables the feature. `upgrade_type` may be an unknown number."""

    feature: str
    level: int
    upgrade_type: int


class Features:
    """The finalized levels of the features."""

    def __init__(self, store: MetadataStore, failures: StoreFailures, defaults: Mapping[str, int] = _DEFAULTS) -> None:
        self._store = store
        self._failures = failures
        self._defaults = defaults
        self.levels: dict[str, int] = dict(defaults)
        self.epoch = 0
        """Number of updates so far. Clients keep the levels with the highest epoch."""

    @property
    def transaction_version(self) -> int:
        return self.levels[TRANSACTION_VERSION]

    async def load(self) -> None:
        """Read the levels. Raises StoreError."""
        try:
            node = await self._store.get(znodes.FEATURES)
        except NoNodeError:
            return
        found = decoded(znodes.FEATURES, znodes.decode_features, node.data)
        self.levels = {**self._defaults, **{name: level for name, level in found.items() if name in SUPPORTED}}
        self.epoch = node.stat.version + 1

    def announced(self) -> dict[str, object]:
        """Return the feature fields of an ApiVersions reply."""
        return {
            "supported_features": [
                {"name": name, "min_version": lowest, "max_version": highest}
                for name, (lowest, highest) in SUPPORTED.items()
            ],
            "finalized_features_epoch": self.epoch,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in self.levels.items()
                if level > 0
            ],
        }

    def check(self, update: FeatureUpdate) -> None:
        """Raise KafkaError(invalid_update_version), with Kafka's message, if the update is not allowed."""
        reason = self._reason_against(update)
        if reason is not None:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Invalid update version {update.level} for feature {update.feature}. {reason}",
            )

    def _reason_against(self, update: FeatureUpdate) -> str | None:
        """Return Kafka's reason, in Kafka's order; None if the update is allowed."""
        name, level, upgrade_type = update
        if upgrade_type not in list(UpgradeType):
            return "The controller does not support the given upgrade type."
        if level < 0:
            return "A feature version cannot be less than 0."
        if name not in SUPPORTED:
            return "Local controller 0 does not support this feature."
        lowest, highest = SUPPORTED[name]
        if not lowest <= level <= highest:
            return f"Local controller 0 only supports versions {lowest}-{highest}"
        current = self.levels[name]
        if level < current and upgrade_type == UpgradeType.UPGRADE:
            return (
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"
                " downgrade."
            )
        if level > current and upgrade_type != UpgradeType.UPGRADE:
            return "Can't downgrade to a newer version."
        return None

    async def update(self, updates: list[FeatureUpdate]) -> None:
        """Finalize levels that `check` has accepted. Raises KafkaError if they cannot be written."""
        levels = self.levels | {update.feature: update.level for update in updates}
        data = znodes.encode_features(levels)
        with self._failures.answering():
            exists = await self._store.exists(znodes.FEATURES) is not None
            path = znodes.FEATURES
            await self._store.multi([Set(path, data) if exists else Create(path, data)])
            self._failures.note_written()
        self.levels = levels
        self.epoch += 1
