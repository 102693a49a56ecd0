"""The entries in replies to DescribeConfigs and CreateTopics: value, source, synonyms, type, documentation.

Pure: combines the settings tables, the broker's settings and a resource's own settings.
"""

from collections.abc import Collection, Mapping
from typing import Any, Final

from headrace.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, Setting, Value
from headrace.config.broker import DEFAULT_SOURCE, DYNAMIC_DEFAULT_SOURCE, TOPIC_SOURCE, Origin
from headrace.config.broker_settings import find_setting
from headrace.config.definition import READ_ONLY
from headrace.config.group import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from headrace.config.inapplicable import explained
from headrace.config.topic import inherited

CLIENT_METRICS_SOURCE: Final = 7
GROUP_SOURCE: Final = 8
ADVERTISED: Final = "advertised.listeners"

Entry = dict[str, Any]


def topic_entries(
    broker: BrokerConfig, overrides: Mapping[str, str], keys: Collection[str] | None = None
) -> list[Entry]:
    """Return the settings of a topic with `overrides`, sorted by name; only `keys`, if given."""
    entries = []
    for name in sorted(_wanted(TOPIC_SETTINGS, overrides, keys)):
        setting = TOPIC_SETTINGS.get(name)
        if setting is not None:
            origins = broker.origins(setting.synonyms[0]) if setting.synonyms else []
            entries.append(_resource_entry(setting, overrides, inherited(broker, setting), origins, TOPIC_SOURCE))
    return entries


def broker_entries(broker: BrokerConfig, own: Mapping[str, str], keys: Collection[str] | None = None) -> list[Entry]:
    """Return the settings of this broker, including those of single listeners."""
    entries = []
    for name in sorted(_wanted(BROKER_SETTINGS, {**dict(broker.listener_settings()), **own}, keys)):
        setting = find_setting(name)
        if setting is None:
            continue
        origins = broker.origins(name)
        if name == ADVERTISED and not broker.is_set(name):
            # The default is the value of `listeners`, with the source of that value.
            origins = [origin._replace(name=name) for origin in broker.origins("listeners")]
        value = _broker_value(broker, setting, name, origins)
        entries.append(_entry(setting, name, value, origins, read_only=setting.update == READ_ONLY))
    return entries


def cluster_default_entries(
    broker: BrokerConfig, defaults: Mapping[str, str], keys: Collection[str] | None = None
) -> list[Entry]:
    """Return the dynamic cluster-wide defaults of broker settings."""
    entries = []
    for name in sorted(defaults):
        setting = find_setting(name)
        if setting is not None and (not keys or name in keys):
            origins = [origin for origin in broker.origins(name) if origin.source == DYNAMIC_DEFAULT_SOURCE]
            entries.append(_entry(setting, name, defaults[name], origins, read_only=setting.update == READ_ONLY))
    return entries


def group_entries(
    broker: BrokerConfig, overrides: Mapping[str, str], keys: Collection[str] | None = None
) -> list[Entry]:
    entries = []
    for name in sorted(_wanted(GROUP_SETTINGS, {}, keys)):
        setting = GROUP_SETTINGS[name]
        synonym = setting.synonyms[0] if setting.synonyms else None
        value = broker.value(synonym) if synonym else setting.default
        origins = broker.origins(synonym) if synonym else [Origin(name, setting.format(value), DEFAULT_SOURCE)]
        entries.append(_resource_entry(setting, overrides, value, origins, GROUP_SOURCE))
    return entries


def client_metrics_entries(overrides: Mapping[str, str], keys: Collection[str] | None = None) -> list[Entry]:
    return [
        _resource_entry(setting, overrides, setting.default, [], CLIENT_METRICS_SOURCE)
        for name, setting in sorted(CLIENT_METRICS_SETTINGS.items())
        if not keys or name in keys
    ]


def _wanted(settings: Mapping[str, Setting], present: Mapping[str, str], keys: Collection[str] | None) -> list[str]:
    shown = {name for name, setting in settings.items() if not setting.hidden or name in present} | present.keys()
    return [name for name in shown if not keys or name in keys]


def _resource_entry(
    setting: Setting, overrides: Mapping[str, str], value: Value, origins: list[Origin], source: int
) -> Entry:
    """Return an entry with the resource's own value, if any, or the inherited one."""
    text = setting.format(value)
    if setting.name in overrides:
        text = _canonical(setting, overrides[setting.name])
        origins = [Origin(setting.name, text, source), *origins]
    return _entry(setting, setting.name, text, origins, read_only=False)


def _entry(setting: Setting, name: str, text: str | None, origins: list[Origin], *, read_only: bool) -> Entry:
    hide = setting.sensitive
    return {
        "name": name,
        "value": None if hide else text,
        "read_only": read_only,
        "config_source": origins[0].source if origins else DEFAULT_SOURCE,
        "is_sensitive": hide,
        "synonyms": [
            {"name": origin.name, "value": None if hide else origin.text, "source": origin.source} for origin in origins
        ],
        "config_type": setting.type,
        "documentation": explained(setting),
    }


def _broker_value(broker: BrokerConfig, setting: Setting, name: str, origins: list[Origin]) -> str | None:
    if name != setting.name:  # for one listener
        return origins[0].text
    if name == ADVERTISED and not broker.is_set(name):
        return setting.format(broker.listeners)
    return setting.format(broker.value(name))


def _canonical(setting: Setting, text: str) -> str | None:
    try:
        return setting.format(setting.parse(text))
    except ConfigError:
        return text
