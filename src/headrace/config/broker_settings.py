"""The table of all broker settings, and the rules for changing one while brokers run."""

from typing import Final

from headrace.config.coordinator import COORDINATOR_SETTINGS
from headrace.config.definition import CLUSTER_WIDE, READ_ONLY, ConfigError, Setting, did_you_mean
from headrace.config.inapplicable import INAPPLICABLE, why_inapplicable
from headrace.config.log import LOG_SETTINGS
from headrace.config.replication import REPLICATION_SETTINGS
from headrace.config.security import SECURITY_SETTINGS
from headrace.config.server import SERVER_SETTINGS

BROKER_SETTINGS: Final[dict[str, Setting]] = {
    **SERVER_SETTINGS,
    **LOG_SETTINGS,
    **COORDINATOR_SETTINGS,
    **REPLICATION_SETTINGS,
    **SECURITY_SETTINGS,
}
LISTENER_PREFIX: Final = "listener.name."
"""Begins the keys of settings that are given for one listener."""


def find_setting(key: str) -> Setting | None:
    """The setting that `key` names, be it for one listener (`listener.name.<name>.<key>`); None where there is none."""
    if key.startswith(LISTENER_PREFIX):
        parts = key.removeprefix(LISTENER_PREFIX).split(".")
        for start in (1, 2):  # what follows the listener's name, or its name and a SASL mechanism
            setting = BROKER_SETTINGS.get(".".join(parts[start:]))
            if setting is not None and len(parts) > start:
                return setting
        return None
    return BROKER_SETTINGS.get(key)


def known_keys() -> set[str]:
    """Every key that a server.properties may hold, save those for one listener."""
    return BROKER_SETTINGS.keys() | INAPPLICABLE


def check_dynamic(key: str, text: str, *, per_broker: bool) -> None:
    """Whether `key` may be set to `text` while brokers run, for one broker or for all.

    Raises ConfigError for an unknown key, a setting that needs a restart, one that cannot be shared, and a bad value.
    """
    setting = find_setting(key)
    if setting is None:
        if key in INAPPLICABLE:
            raise ConfigError(key, None, f"{key} cannot be changed: {why_inapplicable(key)}.")
        raise ConfigError(key, None, f"Unknown broker setting {key}.{did_you_mean(key, BROKER_SETTINGS)}")
    if setting.update == READ_ONLY:
        raise ConfigError(
            key, None, f"{key} cannot be changed while the broker runs; set it in server.properties and restart."
        )
    if setting.update != CLUSTER_WIDE and not per_broker:
        raise ConfigError(key, None, f"{key} can only be set for one broker; name its id.")
    setting.parse(text)
