"""`inter.broker.protocol.version` fixes request versions between brokers, which do not use ApiVersions. Pure."""

import re
from typing import Final, NamedTuple

from headrace.config import ConfigError

SETTING: Final = "inter.broker.protocol.version"
_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.\d+)*(?:-IV(\d+))?")
_LATEST: Final = {(3, 4): 0, (3, 5): 2, (3, 6): 2, (3, 7): 4, (3, 8): 0, (3, 9): 0}
"""The last internal version (IV) of every supported release."""


class InterBrokerVersions(NamedTuple):
    """The versions of a follower's requests to its leader. Those of other requests are the same from 3.4 to 3.9."""

    fetch: int
    list_offsets: int


_SINCE: Final = (
    ((3, 9, 0), InterBrokerVersions(17, 9)),
    ((3, 7, 4), InterBrokerVersions(16, 8)),
    ((3, 5, 1), InterBrokerVersions(15, 8)),
    ((3, 5, 0), InterBrokerVersions(14, 8)),
    ((3, 4, 0), InterBrokerVersions(13, 7)),
)


def inter_broker_versions(text: str) -> InterBrokerVersions:
    """Return the request versions for a value of `inter.broker.protocol.version`, such as 3.7 or 3.7-IV2.

    Raises ConfigError for a version that Headrace cannot use.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ConfigError(SETTING, text, "must be a version of Kafka such as 3.9 or 3.9-IV0")
    release = int(match[1]), int(match[2])
    if release < (3, 4):
        raise ConfigError(SETTING, text, "must be 3.4 to 3.9; raise it on all brokers first")
    latest = _LATEST.get(release)
    if latest is None:
        raise ConfigError(
            SETTING,
            text,
            "must be 3.4 to 3.9, the last version with ZooKeeper: use the value of the other brokers",
        )
    internal = latest if match[3] is None else int(match[3])
    if internal > latest:
        raise ConfigError(SETTING, text, f"must be at most IV{latest}, the last internal version of this release")
    return next(versions for since, versions in _SINCE if (*release, internal) >= since)
