"""Kafka's settings: names, types, limits, defaults and documentation, and typed views of them.

Imports nothing else of Headrace.
"""

from headrace.config.broker import BrokerConfig
from headrace.config.broker_settings import BROKER_SETTINGS, check_dynamic, known_keys
from headrace.config.definition import ConfigError, Setting, Value
from headrace.config.listeners import Listener
from headrace.config.properties import parse_assignments, parse_environment, parse_properties
from headrace.config.topic import TOPIC_SETTINGS, parse_topic_overrides, topic_value, topic_values

__all__ = [
    "BROKER_SETTINGS",
    "TOPIC_SETTINGS",
    "BrokerConfig",
    "ConfigError",
    "Listener",
    "Setting",
    "Value",
    "check_dynamic",
    "load",
    "parse_topic_overrides",
    "topic_value",
    "topic_values",
]


def load(
    file_text: str | None = None,
    environment: dict[str, str] | None = None,
    assignments: tuple[str, ...] | list[str] = (),
    defaults: dict[str, str] | None = None,
) -> BrokerConfig:
    """Return a broker's configuration from `--set`, the environment, the file and `defaults`, in order of precedence.

    As in Kafka, unknown keys in the file are ignored with a warning, unless headrace.unknown.settings is `refuse`.
    Raises ConfigError for all other mistakes.
    """
    in_file = parse_properties(file_text) if file_text is not None else {}
    typed = {**(parse_environment(environment, known_keys()) if environment else {}), **parse_assignments(assignments)}
    given = {**in_file, **typed}
    # As in Kafka, log.dir counts if log.dirs is not set.
    implied = {
        key: text
        for key, text in (defaults or {}).items()
        if key != "log.dirs" or not given.get("log.dir", "").replace(",", " ").strip()
    }
    settings = {**implied, **given}
    refuse = settings.get("headrace.unknown.settings", "").strip() == "refuse"
    return BrokerConfig(settings, may_be_unknown=() if refuse else in_file.keys() - typed.keys())
