"""The table of all broker settings, and the rules for changing them at run time."""

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
"""Prefix of the settings for a single listener."""


def find_setting(key: str) -> Setting | None:
    """Return the setting named `key` or `listener.name.<name>.[<mechanism>.]<setting>`; None if it does not exist."""
    if key.startswith(LISTENER_PREFIX):
        parts = key.removeprefix(LISTENER_PREFIX).split(".")
        for start in (1, 2):  # after the listener's name, or after a SASL mechanism
            setting = BROKER_SETTINGS.get(".".join(parts[start:]))
            if setting is not None and len(parts) > start:
                return setting
        return None
    return BROKER_SETTINGS.get(key)


def known_keys() -> set[str]:
    """Return all valid keys of a server.properties, except `listener.name.*`."""
    return BROKER_SETTINGS.keys() | INAPPLICABLE


def check_dynamic(key: str, text: str, *, per_broker: bool) -> None:
    """Check that `key` may be set to `text` at run time, for one broker (`per_broker`) or for all.

    Raises ConfigError if the key is unknown, read-only, or can only be set per broker, or if the value is invalid.
    """
    setting = find_setting(key)
    if setting is None:
        if key in INAPPLICABLE:
            raise ConfigError(key, None, f"{key} cannot be changed: {why_inapplicable(key)}.")
        raise ConfigError(key, None, f"Unknown broker setting {key}.{did_you_mean(key, BROKER_SETTINGS)}")
    if setting.update == READ_ONLY:
        raise ConfigError(key, None, f"{key} is read-only: set it in server.properties and restart the broker.")
    if setting.update != CLUSTER_WIDE and not per_broker:
        raise ConfigError(key, None, f"{key} can only be set per broker: give the broker's id.")
    setting.parse(text)
