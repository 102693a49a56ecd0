"""Settings of groups and of client metrics subscriptions, which can only be set at run time.

Names, types, limits and defaults are Kafka's; see https://kafka.apache.org/documentation/#groupconfigs (KIP-848,
KIP-932, KIP-1071) and KIP-714.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from headrace.config.coordinator import COORDINATOR_SETTINGS
from headrace.config.definition import (
    BOOLEAN,
    INT,
    LIST,
    STRING,
    Check,
    ConfigError,
    Setting,
    Value,
    at_least,
    between,
    did_you_mean,
    one_of,
    table,
)

if TYPE_CHECKING:
    from headrace.config.broker import BrokerConfig


def _starts_with_offset_reset(value: Value) -> bool:
    return isinstance(value, str) and (value in ("latest", "earliest") or value.startswith("by_duration:P"))


_SELECTORS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)


_MAX_PATTERNS: Final = 10_000
"""Maximum number of characters in all patterns of a subscription."""
_NOT_ASCII: Final = re.compile(r"\\u[0-9A-Fa-f]{4}|[^\x00-\x7f]")


def _matches_clients(value: Value) -> bool:
    if not isinstance(value, tuple) or sum(map(len, value)) > _MAX_PATTERNS:
        return False
    pairs = [item.partition("=") for item in value]
    return all(name in _SELECTORS and pattern and _is_pattern(pattern) for name, _, pattern in pairs)


def _is_pattern(text: str) -> bool:
    """Return True if the syntax of a pattern is valid.

    Non-ASCII characters are replaced first, because Python takes milliseconds to compile a range of them.
    """
    try:
        re.compile(_NOT_ASCII.sub("x", text).encode())
    except (re.error, RecursionError, OverflowError):
        return False
    return True


_HEARTBEAT: Final = "Time in ms between two heartbeats of a member."
_SESSION: Final = "Time in ms without a heartbeat after which a member is considered dead."
_ASSIGNMENT: Final = "Minimum time in ms between two assignments of the group."

GROUP_SETTINGS: Final[dict[str, Setting]] = table(
    Setting(
        "consumer.session.timeout.ms",
        INT,
        45_000,
        _SESSION,
        at_least(1),
        synonyms=("group.consumer.session.timeout.ms",),
    ),
    Setting(
        "consumer.heartbeat.interval.ms",
        INT,
        5000,
        _HEARTBEAT,
        at_least(1),
        synonyms=("group.consumer.heartbeat.interval.ms",),
    ),
    Setting(
        "consumer.assignment.interval.ms",
        INT,
        1000,
        _ASSIGNMENT,
        at_least(0),
        synonyms=("group.consumer.assignment.interval.ms",),
    ),
    Setting("share.session.timeout.ms", INT, 45_000, _SESSION, at_least(1)),
    Setting("share.heartbeat.interval.ms", INT, 5000, _HEARTBEAT, at_least(1)),
    Setting("share.assignment.interval.ms", INT, 1000, _ASSIGNMENT, at_least(0)),
    Setting(
        "share.auto.offset.reset",
        STRING,
        "latest",
        "Start position of a share group: latest, earliest, or by_duration: followed by an ISO 8601 duration "
        "before now.",
        Check("latest, earliest, or by_duration: and an ISO 8601 duration such as PT1H", _starts_with_offset_reset),
    ),
    Setting(
        "share.delivery.count.limit", INT, 5, "Maximum number of deliveries of a record to a share group.", at_least(2)
    ),
    Setting(
        "share.isolation.level",
        STRING,
        "read_uncommitted",
        "Isolation level of a share group.",
        one_of("read_committed", "read_uncommitted"),
    ),
    Setting(
        "share.partition.max.record.locks",
        INT,
        2000,
        "Maximum number of records of a partition that a share group may lock at the same time.",
        at_least(100),
    ),
    Setting(
        "share.record.lock.duration.ms", INT, 30_000, "Time in ms that a member may lock a record.", at_least(1000)
    ),
    Setting("share.renew.acknowledge.enable", BOOLEAN, True, "Allow members to extend the lock of a record."),
    Setting("streams.session.timeout.ms", INT, 45_000, _SESSION, at_least(1)),
    Setting("streams.heartbeat.interval.ms", INT, 5000, _HEARTBEAT, at_least(1)),
    Setting("streams.assignment.interval.ms", INT, 1000, _ASSIGNMENT, at_least(0)),
    Setting(
        "streams.initial.rebalance.delay.ms",
        INT,
        3000,
        "Time in ms that a new group waits for more members before its first assignment.",
        at_least(0),
    ),
    Setting("streams.num.standby.replicas", INT, 0, "Number of standby replicas per task.", at_least(0)),
)

CLIENT_METRICS_SETTINGS: Final[dict[str, Setting]] = table(
    Setting("interval.ms", INT, 300_000, "Interval in ms between a client's reports.", between(100, 3_600_000)),
    Setting("metrics", LIST, (), "Prefixes of the metrics to report; * for all."),
    Setting(
        "match",
        LIST,
        (),
        "Clients that report, as selector=pattern, such as client_software_name=.*",
        Check("selector=pattern, where selector is one of " + ", ".join(_SELECTORS), _matches_clients),
    ),
)


def parse_group_overrides(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Parse a group's settings. Raises ConfigError for an unknown key or an invalid value."""
    return _parse(overrides, GROUP_SETTINGS, "group")


def check_group_limits(broker: "BrokerConfig", overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if a group's setting is outside the broker's limits."""
    for key, text in overrides.items():
        limits = [f"group.{part}.{bound}.{rest}" for part, rest in (key.split(".", 1),) for bound in ("min", "max")]
        if not all(limit in COORDINATOR_SETTINGS for limit in limits):
            continue
        low, high = (broker.value(limit) for limit in limits)
        value = GROUP_SETTINGS[key].parse(text)
        assert isinstance(value, int)
        assert isinstance(low, int)
        assert isinstance(high, int)
        if not low <= value <= high:
            raise ConfigError(key, text, f"must be from {low} ({limits[0]}) to {high} ({limits[1]})")


def parse_client_metrics(overrides: Mapping[str, str]) -> dict[str, Value]:
    """Parse a client metrics subscription. Raises ConfigError for an unknown key or an invalid value."""
    return _parse(overrides, CLIENT_METRICS_SETTINGS, "client metrics")


def _parse(overrides: Mapping[str, str], settings: Mapping[str, Setting], what: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for key, text in overrides.items():
        setting = settings.get(key)
        if setting is None:
            raise ConfigError(key, None, f"Unknown {what} config name: {key}.{did_you_mean(key, settings)}")
        values[key] = setting.parse(text)
    return values
