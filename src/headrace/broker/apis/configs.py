"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from headrace.broker.apis import loggers
from headrace.broker.apis.answer_cache import AnswerCache
from headrace.broker.apis.config_changes import alter_config, check_names, replace_config
from headrace.broker.apis.config_entries import (
    Entry,
    broker_entries,
    client_metrics_entries,
    cluster_default_entries,
    group_entries,
    topic_entries,
)
from headrace.cluster import topic_names
from headrace.cluster.admin import Alteration, ClusterAdmin
from headrace.cluster.image import (
    BROKER_CONFIG,
    CLIENT_METRICS_CONFIG,
    GROUP_CONFIG,
    TOPIC_CONFIG,
    ConfigResource,
)
from headrace.cluster.metadata_cache import MetadataCache
from headrace.cluster.topic_changes import check_records
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode, KafkaError
from headrace.server.context import Handler, Reply, RequestContext
from headrace.slices import Pace, Steps, counted
from headrace.types import Request
from headrace.wire.apis import ApiKey, item_encoder
from headrace.wire.encoder import EncodedItems
from headrace.wire.items import Items, made_of

# Resource types in requests.
TOPIC: Final = 2
BROKER: Final = 4
BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
GROUP: Final = 32
_KINDS: Final[Mapping[int, str]] = {
    TOPIC: TOPIC_CONFIG,
    BROKER: BROKER_CONFIG,
    CLIENT_METRICS: CLIENT_METRICS_CONFIG,
    GROUP: GROUP_CONFIG,
}
ENTRIES_BYTES: Final = 4 * 1024 * 1024
"""Size of the cache of encoded entries, in bytes."""
_MOST_KEYS: Final = 20
"""Entries for requests with more keys are not cached."""

_INTEGER: Final = re.compile("[+-]?[0-9]{1,10}")
_FEW_RESOURCES: Final = 100
"""Up to this many resources are encoded into one buffer (a megabyte or two), which is faster."""


class ConfigApis:
    """Handles DescribeConfigs, ListConfigResources, and both requests that alter settings."""

    def __init__(self, cache: MetadataCache, admin: ClusterAdmin, config: BrokerConfig) -> None:
        self._cache = cache
        self._admin = admin
        self._config = config
        self._kept: AnswerCache[EncodedItems] = AnswerCache(ENTRIES_BYTES)

    def routes(self) -> dict[ApiKey, Handler]:
        return {
            ApiKey.DESCRIBE_CONFIGS: self.describe_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self.incremental_alter_configs,
            ApiKey.ALTER_CONFIGS: self.alter_configs,
            ApiKey.LIST_CONFIG_RESOURCES: self.list_config_resources,
        }

    def describe_configs(self, context: RequestContext, request: Request) -> Reply | Steps[Reply]:
        """Describe the settings of resources, with synonyms and documentation on request."""
        if len(request.resources) > _FEW_RESOURCES:
            # Create results only during encoding, which stops if the reply becomes too large.
            version = context.api_version
            return {"results": Items(request.resources, lambda resource: self._described(version, resource, request))}
        return self._describe_few(context, request)

    def _describe_few(self, context: RequestContext, request: Request) -> Steps[Reply]:
        encode = item_encoder(ApiKey.DESCRIBE_CONFIGS, context.api_version, "results")
        results = bytearray()
        for resource in request.resources:
            encode(results, self._described(context.api_version, resource, request))
            yield
        return {"results": EncodedItems(len(request.resources), results)}

    async def incremental_alter_configs(self, context: RequestContext, request: Request) -> Reply:
        """Set, delete, append to or subtract from single settings (KIP-339), atomically for each resource."""

        def alteration(resource: Any) -> Alteration:
            for config in resource.configs:
                if config.value is None and config.config_operation != 1:
                    raise _invalid(f"Null value not supported for {config.name}: use DELETE to restore the default.")
            changes = [(config.name, config.config_operation, config.value) for config in resource.configs]
            return lambda current: alter_config(self._config, _resource(resource), current, changes)

        return {"responses": await self._alter(request, alteration)}

    async def alter_configs(self, context: RequestContext, request: Request) -> Reply:
        """Replace all settings of resources: settings that the request does not name get their defaults."""

        def alteration(resource: Any) -> Alteration:
            for config in resource.configs:
                if config.value is None:
                    raise _invalid(f"Null value not supported for {config.name}: omit it to restore the default.")
            if resource.resource_type == BROKER_LOGGER:
                raise _invalid(
                    f"Unknown resource type {resource.resource_type}; use IncrementalAlterConfigs for loggers."
                )
            values = {config.name: config.value for config in resource.configs}
            return lambda _: replace_config(self._config, _resource(resource), values)

        return {"responses": await self._alter(request, alteration)}

    def list_config_resources(self, context: RequestContext, request: Request) -> Reply:
        """List the resources of the requested types (KIP-1142), but groups and client metrics only with settings."""
        image, node = self._cache.image, str(self._config.node_id)
        named: dict[int, Sequence[str]] = {
            TOPIC: sorted(image.topics),
            BROKER: [str(broker) for broker in sorted(image.brokers)],
            BROKER_LOGGER: [node],
            CLIENT_METRICS: sorted(
                resource.name for resource in image.configs if resource.kind == CLIENT_METRICS_CONFIG
            ),
            GROUP: sorted(resource.name for resource in image.configs if resource.kind == GROUP_CONFIG),
        }
        types = tuple(dict.fromkeys(getattr(request, "resource_types", (CLIENT_METRICS,)))) or tuple(named)
        if any(wanted not in named for wanted in types):
            return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
        listed = [(name, wanted) for wanted in types for name in named[wanted]]
        return {"config_resources": made_of(listed, lambda one: {"resource_name": one[0], "resource_type": one[1]})}

    def _described(self, version: int, resource: Any, request: Request) -> dict[str, Any]:
        described = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            entries = self._encoded(
                version,
                resource,
                synonyms=request.include_synonyms,
                documentation=getattr(request, "include_documentation", False),
            )
        except KafkaError as error:
            return {**described, "error_code": error.code, "error_message": error.message or "", "configs": ()}
        return {**described, "error_message": "", "configs": entries}  # empty, not null, as in Kafka

    def _encoded(self, version: int, resource: Any, *, synonyms: bool, documentation: bool) -> EncodedItems:
        """Return the encoded entries of a resource. Many resources have the same settings and share a cache entry.

        Raises KafkaError.
        """
        kind, name, keys = resource.resource_type, resource.resource_name, resource.configuration_keys
        own = self._own_settings(kind, name)
        # `configs` also contains the broker's settings, from which resources inherit.
        configs = self._cache.image.configs
        may_keep = kind != BROKER_LOGGER and len(keys or ()) <= _MOST_KEYS
        key = (
            version,
            kind,
            kind == BROKER and not name,
            tuple(own.items()),
            tuple(keys or ()),
            synonyms,
            documentation,
        )
        if may_keep:
            kept = self._kept.get(key, configs)
            if kept is not None:
                return kept
        encode = item_encoder(ApiKey.DESCRIBE_CONFIGS, version, "results", "configs")
        out = bytearray()
        entries = self._entries(kind, name, own, keys)
        for entry in entries:
            changed: dict[str, Any] = {}
            if not synonyms:
                changed["synonyms"] = ()
            if not documentation:
                changed["documentation"] = None
            encode(out, {**entry, **changed})
        items = EncodedItems(len(entries), bytes(out))
        if may_keep:
            self._kept.put(key, configs, items, len(out) + sum(len(text) for pair in own.items() for text in pair))
        return items

    def _own_settings(self, kind: int, name: str) -> Mapping[str, str]:
        """Return the dynamic settings of a resource. Raises KafkaError for an invalid resource or an unknown topic."""
        image = self._cache.image
        if kind == TOPIC:
            if name not in image.topics:
                topic_names.validate(name)
                raise KafkaError(ErrorCode.unknown_topic_or_partition)
        elif kind == BROKER:
            if name:
                self._check_node(name, "or empty string, ")
        elif kind == BROKER_LOGGER:
            self._check_logger_resource(name)
            return {}
        elif kind == GROUP:
            _check_named(name, "Group name")
        elif kind == CLIENT_METRICS:
            _check_named(name, "Client metrics subscription name")
        else:
            raise _invalid(f"Unexpected resource type {kind} for resource {name}")
        return image.config(_KINDS[kind], name)

    def _entries(self, kind: int, name: str, own: Mapping[str, str], keys: Sequence[str] | None) -> list[Entry]:
        if kind == TOPIC:
            return topic_entries(self._config, own, keys)
        if kind == BROKER:
            return (broker_entries if name else cluster_default_entries)(self._config, own, keys)
        if kind == BROKER_LOGGER:
            return loggers.entries(keys)
        if kind == GROUP:
            return group_entries(self._config, own, keys)
        return client_metrics_entries(own, keys)

    async def _alter(self, request: Request, alteration: Callable[[Any], Alteration]) -> Sequence[dict[str, Any]]:
        """Return one result per resource, in order. Duplicate resources are refused."""
        times = await counted((resource.resource_type, resource.resource_name) for resource in request.resources)
        problems: list[KafkaError | None] = []
        accepted: list[tuple[ConfigResource, Alteration]] = []
        records = 0
        pace = Pace()
        for resource in request.resources:
            try:
                if times[resource.resource_type, resource.resource_name] > 1:
                    raise _invalid("Each resource must appear at most once.")
                check_names(config.name for config in resource.configs)
                change = alteration(resource)
                if resource.resource_type == BROKER_LOGGER:
                    self._check_logger_resource(resource.resource_name)
                    changes = [(config.name, config.config_operation, config.value) for config in resource.configs]
                    loggers.alter(changes, validate_only=request.validate_only)
                else:
                    self._check_resource(resource.resource_type, resource.resource_name, change)
                    accepted.append((_resource(resource), change))
                    records += len(resource.configs)
            except KafkaError as error:
                problems.append(error.with_traceback(None))
            else:
                problems.append(None)
            await pace.rest()
        check_records(max(records, len(accepted)))
        outcome = await self._admin.alter_configs(accepted, validate_only=request.validate_only)
        failed = {resource: error for (resource, _), error in zip(accepted, outcome, strict=True)}

        def altered(place: int) -> dict[str, Any]:
            resource, problem = request.resources[place], problems[place]
            if problem is None and resource.resource_type in _KINDS:
                problem = failed.get(_resource(resource))
            return _altered(resource, problem)

        return made_of(range(len(problems)), altered)

    def _check_resource(self, resource_type: int, name: str, change: Alteration) -> None:
        if resource_type == TOPIC:
            _check_named(name, "Topic name")
            topic_names.validate(name)
            if name not in self._cache.image.topics:
                change({})  # as in Kafka, report invalid settings first
                raise KafkaError(ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist.")
        elif resource_type == BROKER:
            if name:
                self._check_node(name, "")
        elif resource_type == GROUP:
            _check_named(name, "Group name")
        elif resource_type == CLIENT_METRICS:
            _check_named(name, "Client metrics subscription name")
        else:
            raise _invalid(f"Unknown resource type {resource_type}")

    def _check_logger_resource(self, name: str) -> None:
        _check_named(name, "Broker id")
        self._check_node(name, "")

    def _check_node(self, name: str, alternative: str) -> None:
        node = self._config.node_id
        if name == str(node):
            return
        if _INTEGER.fullmatch(name):
            raise _invalid(f"Unexpected broker id, expected {node} {alternative}but received {name}")
        raise _invalid(f"Broker id must be an integer, but it is: {name}")


def _resource(resource: Any) -> ConfigResource:
    return ConfigResource(_KINDS.get(resource.resource_type, ""), resource.resource_name)


def _altered(resource: Any, error: KafkaError | None) -> dict[str, Any]:
    return {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "error_code": error.code if error else ErrorCode.none,
        "error_message": error.message if error else None,
    }


def _check_named(name: str, label: str) -> None:
    if not name:
        raise _invalid(f"{label} must not be empty")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_request, message)
