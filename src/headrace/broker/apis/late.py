"""Handlers of administrators' requests, which are imported when the first such request arrives (decision 004)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from headrace.server.context import Answer, Apis, Handler, RequestContext
from headrace.types import Request
from headrace.wire.apis import ApiKey

if TYPE_CHECKING:
    from headrace.broker.apis.topics import TopicChanges
    from headrace.broker.disks.log_mover import LogMover
    from headrace.cluster.admin import ClusterAdmin
    from headrace.cluster.features import Features
    from headrace.cluster.metadata_cache import MetadataCache
    from headrace.config import BrokerConfig
    from headrace.replication.replica_manager import ReplicaManager


class LateApis:
    """Handlers of `api_keys`, which `build` creates at the first request."""

    def __init__(self, api_keys: tuple[ApiKey, ...], build: Callable[[], Apis]) -> None:
        self._api_keys = api_keys
        self._build = build
        self._routes: Mapping[ApiKey, Handler] = {}

    def routes(self) -> dict[ApiKey, Handler]:
        return dict.fromkeys(self._api_keys, self._handle)

    def _handle(self, context: RequestContext, request: Request) -> Answer:
        if not self._routes:
            self._routes = self._build().routes()
            assert self._routes.keys() == {*self._api_keys}
        return self._routes[ApiKey(context.api_key)](context, request)


def configs(cache: "MetadataCache", admin: "ClusterAdmin", config: "BrokerConfig") -> LateApis:
    def build() -> Apis:
        from headrace.broker.apis.configs import ConfigApis

        return ConfigApis(cache, admin, config)

    keys = ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.LIST_CONFIG_RESOURCES
    return LateApis(keys, build)


def features(supported: "Features") -> LateApis:
    def build() -> Apis:
        from headrace.broker.apis.features import FeaturesApi

        return FeaturesApi(supported)

    return LateApis((ApiKey.UPDATE_FEATURES,), build)


def log_dirs(replicas: "ReplicaManager", mover: "LogMover") -> LateApis:
    def build() -> Apis:
        from headrace.broker.apis.log_dirs import LogDirsApi

        return LogDirsApi(replicas, mover)

    return LateApis((ApiKey.DESCRIBE_LOG_DIRS, ApiKey.ALTER_REPLICA_LOG_DIRS), build)


def placement(cache: "MetadataCache") -> LateApis:
    def build() -> Apis:
        from headrace.broker.apis.placement import PlacementApis

        return PlacementApis(cache)

    keys = ApiKey.ELECT_LEADERS, ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS
    return LateApis(keys, build)


def topics(cache: "MetadataCache", admin: "TopicChanges", config: "BrokerConfig") -> LateApis:
    def build() -> Apis:
        from headrace.broker.apis.topics import TopicApis

        return TopicApis(cache, admin, config)

    return LateApis((ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS, ApiKey.CREATE_PARTITIONS), build)
