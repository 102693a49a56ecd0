"""Apply dynamic settings of the broker, topics and groups."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.cluster.image import BROKER_CONFIG, GROUP_CONFIG, TOPIC_CONFIG, ConfigResource
from headrace.cluster.metadata_cache import MetadataCache
from headrace.config import BrokerConfig, topic_values
from headrace.slices import Pace, finish
from headrace.storage.log.config import LogConfig

if TYPE_CHECKING:
    from headrace.broker.coordinators.groups import Groups
    from headrace.replication.replica_manager import ReplicaManager

log = logging.getLogger(__name__)


class LiveSettings:
    """Applies the settings in the metadata cache."""

    def __init__(self, config: BrokerConfig, cache: MetadataCache) -> None:
        self._config = config
        self._cache = cache

    def log_config(self, topic: str) -> LogConfig:
        """Return the config of a topic's logs, with the broker's defaults."""
        values: dict[str, Any] = topic_values(self._config, self._cache.topic_config(topic))
        values["cleanup_policy"] = frozenset(values["cleanup_policy"])
        return LogConfig(**{name: values[name] for name in LogConfig.__slots__ if name in values})

    def apply_to_broker(self) -> None:
        """Apply the broker's dynamic settings."""
        image = self._cache.image
        changed = self._config.reconfigure(
            image.config(BROKER_CONFIG, ""), image.config(BROKER_CONFIG, str(self._config.node_id))
        )
        if changed:
            log.info("Dynamic settings of this broker changed: %s", ", ".join(sorted(changed)))

    async def apply(self, resources: Sequence[ConfigResource], replicas: "ReplicaManager", groups: "Groups") -> None:
        topics = {resource.name for resource in resources if resource.kind == TOPIC_CONFIG}
        pace = Pace()
        if any(resource.kind == BROKER_CONFIG for resource in resources):
            self.apply_to_broker()
            topics |= self._cache.image.topics.keys()  # the broker's settings are the defaults of all topics
            groups.configure_all()
        for resource in resources:
            if resource.kind == GROUP_CONFIG:
                groups.configure(resource)
                await pace.rest()
        if topics:
            await finish(replicas.reconfigure(topics))
