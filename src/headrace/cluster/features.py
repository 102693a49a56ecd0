"""The cluster's features and their finalized levels (KIP-584), kept in the metadata store."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from headrace.cluster import znodes
from headrace.cluster.failures import StoreFailures
from headrace.cluster.store import Create, MetadataStore, NoNodeError, Set
from headrace.errors import ErrorCode, KafkaError

TRANSACTION_VERSION: Final = "transaction.version"
SUPPORTED: Final[Mapping[str, tuple[int, int]]] = {TRANSACTION_VERSION: (0, 2)}
"""Feature to its lowest and highest level."""
_DEFAULTS: Final = {TRANSACTION_VERSION: 2}
"""Levels of a cluster that has never changed them."""
WITH_ZOOKEEPER: Final = {TRANSACTION_VERSION: 0}
"""Levels of a cluster with ZooKeeper, in which Kafka does not know `transaction.version`."""


class FeatureUpdate(NamedTuple):
    """A level to finalize; 0 disables the feature."""

    feature: str
    level: int
    may_downgrade: bool


class Features:
    """The finalized levels."""

    def __init__(self, store: MetadataStore, failures: StoreFailures, defaults: Mapping[str, int] = _DEFAULTS) -> None:
        self._store = store
        self._failures = failures
        self._defaults = defaults
        self.levels: dict[str, int] = dict(defaults)
        self.epoch = 0
        """Number of changes. Clients keep the reply with the highest epoch."""

    @property
    def transaction_version(self) -> int:
        return self.levels[TRANSACTION_VERSION]

    async def load(self) -> None:
        """Read the levels. Raises StoreError."""
        try:
            node = await self._store.get(znodes.FEATURES)
        except NoNodeError:
            return
        self.levels = {
            **self._defaults,
            **{name: level for name, level in znodes.decode_features(node.data).items() if name in SUPPORTED},
        }
        self.epoch = node.stat.version + 1

    def announced(self) -> dict[str, object]:
        """Return the feature fields of ApiVersions."""
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
        name, level, may_downgrade = update
        if name not in SUPPORTED:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Invalid update version {level} for feature {name}. Local controller 0 does not support this feature.",
            )
        lowest, highest = SUPPORTED[name]
        if not lowest <= level <= highest:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Invalid update version {level} for feature {name}. Local controller 0 only supports versions"
                f" {lowest}-{highest}",
            )
        current = self.levels[name]
        if level < current and not may_downgrade:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Invalid update version {level} for feature {name}. Can't downgrade the version of this feature"
                " without setting the upgrade type to either safe or unsafe downgrade.",
            )
        if level > current and may_downgrade:
            raise KafkaError(
                ErrorCode.invalid_update_version,
                f"Invalid update version {level} for feature {name}. Can't downgrade to a newer version.",
            )

    async def update(self, updates: list[FeatureUpdate]) -> None:
        """Finalize checked levels. Raises KafkaError if they cannot be written."""
        levels = self.levels | {update.feature: update.level for update in updates}
        data = znodes.encode_features(levels)
        with self._failures.answering():
            exists = await self._store.exists(znodes.FEATURES) is not None
            path = znodes.FEATURES
            await self._store.multi([Set(path, data) if exists else Create(path, data)])
            self._failures.note_written()
        self.levels = levels
        self.epoch += 1
