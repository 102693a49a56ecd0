"""The dynamic settings of topics and of this broker in ZooKeeper.

After changing settings, a broker or tool creates a notification below `/config/changes`, which all brokers watch.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, TypeAlias

from headrace.cluster import znodes
from headrace.cluster.image import BROKER_CONFIG, TOPIC_CONFIG, ConfigResource
from headrace.cluster.loading import decoded
from headrace.cluster.membership.registration import WatchedStore
from headrace.cluster.store import Delete, MalformedNodeError, Node, NoNodeError

Configs: TypeAlias = Mapping[ConfigResource, Mapping[str, str]]

_CHANGES: Final = f"{znodes.CONFIG}/changes"
_PREFIX: Final = "config_change_"
_NOTIFICATION_LIFE_MS: Final = 15 * 60 * 1000
"""Notifications are deleted after this time, as in Kafka."""

log = logging.getLogger(__name__)


class ConfigWatch:
    """Follows the settings. `apply` gets settings that may have changed, and empty ones for those that were deleted."""

    def __init__(
        self,
        store: WatchedStore,
        broker_id: int,
        *,
        apply: Callable[[Configs], Awaitable[None]],
        changed: Callable[[], None],
        now_ms: Callable[[], int],
    ) -> None:
        """`changed` is called when there are new notifications; then call `follow`."""
        self._store = store
        self._apply = apply
        self._changed = changed
        self._now_ms = now_ms
        self._brokers = (ConfigResource(BROKER_CONFIG, ""), ConfigResource(BROKER_CONFIG, str(broker_id)))
        self._latest = ""
        """The name of the latest notification that was applied."""
        self.topics: set[str] = set()
        """Topics whose settings this broker has read."""

    async def load(self, *, again: bool = False) -> Configs:
        """Read all settings, and watch for changes. Call it again after a lost connection.

        Raises MalformedNodeError unless `again`: a broker that starts with the default retention may delete records,
        but a running broker keeps its current settings.
        """
        self._latest = max(await self._notifications(), default="")
        names = await self._children(f"{znodes.CONFIG}/{TOPIC_CONFIG}")
        topics = [ConfigResource(TOPIC_CONFIG, znodes.desanitize(name)) for name in names]
        # Settings of topics that were deleted meanwhile become empty.
        known = (ConfigResource(TOPIC_CONFIG, name) for name in self.topics)
        return await self._read({*topics, *known, *self._brokers}, is_strict=not again)

    async def read_topics(self, names: Iterable[str]) -> Configs:
        """Read the settings of topics that were created after `load`: creation causes no notifications."""
        return await self._read({ConfigResource(TOPIC_CONFIG, name) for name in names})

    async def follow(self) -> None:
        """Apply the changes since the last call, and watch for more."""
        names = await self._notifications()
        nodes = await self._store.get_many([f"{_CHANGES}/{name}" for name in names])
        resources: set[ConfigResource] = set()
        for name, node in zip(names, nodes, strict=True):
            if node is not None and name > self._latest:
                resources.update(self._resource_of(name, node))
        self._latest = max([self._latest, *names])
        if resources:
            await self._apply(await self._read(resources))
        await self._purge(names, nodes)

    async def _notifications(self) -> list[str]:
        try:
            names = await self._store.watched_children(_CHANGES, self._changed)
        except NoNodeError:
            return []
        return [name for name in names if name.startswith(_PREFIX)]

    async def _children(self, path: str) -> list[str]:
        try:
            return await self._store.children(path)
        except NoNodeError:
            return []

    def _resource_of(self, name: str, node: Node) -> Iterable[ConfigResource]:
        """Return the resource that a notification names, if this broker uses its settings."""
        try:
            resource = decoded(f"{_CHANGES}/{name}", changed_resource, node.data)
        except MalformedNodeError as error:
            text = "Ignored the malformed notification %s/%s: restart this broker to apply the changed settings (%r)"
            log.error(text, _CHANGES, name, error.__cause__)
            return ()
        return (resource,) if resource.kind == TOPIC_CONFIG or resource in self._brokers else ()

    async def _read(self, resources: Iterable[ConfigResource], *, is_strict: bool = False) -> Configs:
        """Read settings. With `is_strict`, malformed ones raise MalformedNodeError; otherwise they are left out."""
        wanted = sorted(resources)
        self.topics.update(resource.name for resource in wanted if resource.kind == TOPIC_CONFIG)
        paths = [znodes.config_path(resource) for resource in wanted]
        configs = {}
        for resource, path, node in zip(wanted, paths, await self._store.get_many(paths), strict=True):
            try:
                configs[resource] = {} if node is None else decoded(path, znodes.decode_config, node.data)
            except MalformedNodeError as error:
                if is_strict:
                    raise
                log.error("Ignored the malformed settings in node %s: correct or delete it (%r)", path, error.__cause__)
        return configs

    async def _purge(self, names: Iterable[str], nodes: Iterable[Node | None]) -> None:
        """Delete old notifications. Other brokers may do so at the same time."""
        before_ms = self._now_ms() - _NOTIFICATION_LIFE_MS
        old = [name for name, node in zip(names, nodes, strict=True) if node and node.stat.ctime_ms < before_ms]
        await self._store.multi_many([[Delete(f"{_CHANGES}/{name}")] for name in old])


def changed_resource(data: bytes) -> ConfigResource:
    """Decode a notification of version 1 or 2."""
    value = json.loads(data)
    if value["version"] == 1:
        return ConfigResource(value["entity_type"], znodes.desanitize(value["entity_name"]))
    kind, _, name = value["entity_path"].partition("/")
    return ConfigResource(kind, znodes.desanitize(name))
