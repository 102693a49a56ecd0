"""Compute and check a resource's new settings from its current ones and a request. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from headrace.cluster.image import BROKER_CONFIG, CLIENT_METRICS_CONFIG, GROUP_CONFIG, TOPIC_CONFIG, ConfigResource
from headrace.config import (
    TOPIC_SETTINGS,
    BrokerConfig,
    ConfigError,
    Setting,
    Value,
    check_dynamic,
    parse_topic_overrides,
)
from headrace.config.broker_settings import find_setting
from headrace.config.definition import LIST
from headrace.config.group import (
    CLIENT_METRICS_SETTINGS,
    GROUP_SETTINGS,
    check_group_limits,
    parse_client_metrics,
    parse_group_overrides,
)
from headrace.config.topic import inherited
from headrace.errors import ErrorCode, KafkaError

# Operations of IncrementalAlterConfigs.
SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3

Change = tuple[str, int, str | None]
"""Name of a setting, operation, value."""


def check_names(names: Iterable[str]) -> None:
    """Raise KafkaError(invalid_request) if a setting is named twice."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise KafkaError(ErrorCode.invalid_request, "Error due to duplicate config keys: " + ", ".join(twice))


def alter_config(
    config: BrokerConfig, resource: ConfigResource, current: Mapping[str, str], changes: Sequence[Change]
) -> dict[str, str]:
    """Return the settings after `changes`. Raises KafkaError if a change is invalid."""
    values = dict(current)
    for name, operation, value in changes:
        if operation == DELETE:
            values.pop(name, None)
        elif operation == SET:
            values[name] = value or ""
        elif operation in (APPEND, SUBTRACT):
            values[name] = _with_items(config, resource, name, operation, values.get(name), value or "")
        else:
            raise KafkaError(
                ErrorCode.invalid_request,
                f"Unknown operation type {operation} for {name}: use 0 (set), 1 (delete), 2 (append) or 3 (subtract).",
            )
    _check(config, resource, values, {name for name, _, _ in changes})
    return values


def replace_config(config: BrokerConfig, resource: ConfigResource, values: Mapping[str, str]) -> dict[str, str]:
    """Return `values`, which replace all current settings. Raises KafkaError if a value is invalid."""
    _check(config, resource, values, values.keys())
    return dict(values)


def _with_items(
    config: BrokerConfig, resource: ConfigResource, name: str, operation: int, text: str | None, items: str
) -> str:
    setting = _find(resource, name)
    if setting is None or setting.type != LIST:
        verb = "APPEND" if operation == APPEND else "SUBTRACT"
        raise KafkaError(ErrorCode.invalid_config, f"Can't {verb} to key {name} because its type is not LIST.")
    if text is None:
        text = setting.format(_default(config, resource, setting)) or ""
    present = [item for item in text.split(",") if item]
    wanted = [item.strip() for item in items.split(",")]
    if operation == APPEND:
        known = set(present)
        present.extend(item for item in wanted if item not in known)
    else:
        unwanted = set(wanted)
        present = [item for item in present if item not in unwanted]
    return ",".join(present)


def _find(resource: ConfigResource, name: str) -> Setting | None:
    if resource.kind == BROKER_CONFIG:
        return find_setting(name)
    return {
        TOPIC_CONFIG: TOPIC_SETTINGS,
        GROUP_CONFIG: GROUP_SETTINGS,
        CLIENT_METRICS_CONFIG: CLIENT_METRICS_SETTINGS,
    }[resource.kind].get(name)


def _default(config: BrokerConfig, resource: ConfigResource, setting: Setting) -> Value:
    if resource.kind == TOPIC_CONFIG:
        return inherited(config, setting)
    if resource.kind == BROKER_CONFIG:
        return config.value(setting.name)
    return setting.default


_PARSERS: Final[Mapping[str, Callable[[Mapping[str, str]], object]]] = {
    TOPIC_CONFIG: parse_topic_overrides,
    GROUP_CONFIG: parse_group_overrides,
    CLIENT_METRICS_CONFIG: parse_client_metrics,
}


def _is_valid(resource: ConfigResource, name: str, text: str) -> bool:
    try:
        _PARSERS[resource.kind]({name: text})
    except ConfigError:
        return False
    return True


def _check(
    config: BrokerConfig,
    resource: ConfigResource,
    values: Mapping[str, str],
    touched: Iterable[str],
) -> None:
    try:
        if resource.kind != BROKER_CONFIG:
            # Ignore unchanged settings that are invalid: a Kafka version with other rules may have accepted them.
            checked = set(touched)
            values = {name: text for name, text in values.items() if name in checked or _is_valid(resource, name, text)}
            _PARSERS[resource.kind](values)
            if resource.kind == GROUP_CONFIG:
                check_group_limits(config, values)
            return
        for name in touched:
            if name in values:
                check_dynamic(name, values[name], per_broker=bool(resource.name))
    except ConfigError as error:
        # As in Kafka: an invalid change is INVALID_REQUEST for brokers, INVALID_CONFIG for other resources.
        code = ErrorCode.invalid_request if resource.kind == BROKER_CONFIG else ErrorCode.invalid_config
        raise KafkaError(code, str(error)) from error
