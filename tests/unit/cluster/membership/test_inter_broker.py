import pytest

from headrace.cluster.membership.inter_broker import inter_broker_versions
from headrace.config import ConfigError


def test_the_versions_are_those_of_kafkas_followers() -> None:
    expected = {
        "3.4": (13, 7),
        "3.4-IV0": (13, 7),
        "3.5-IV0": (14, 8),
        "3.5-IV1": (15, 8),
        "3.5": (15, 8),
        "3.6.2": (15, 8),
        "3.7-IV3": (15, 8),
        "3.7": (16, 8),
        "3.8": (16, 8),
        "3.9": (17, 9),
        "3.9-IV0": (17, 9),
        "3.9.1": (17, 9),
    }
    assert {setting: inter_broker_versions(setting) for setting in expected} == expected


def test_other_versions_are_refused_with_the_reason() -> None:
    for setting, reason in (
        ("3.3", "must be 3.4 to 3.9; raise it on all brokers first"),
        ("0.10.2", "raise it on all brokers first"),
        ("4.0-IV0", "must be 3.4 to 3.9, the last version with ZooKeeper: use the value of the other brokers"),
        ("3.10", "the last version with ZooKeeper"),
        ("3.9-IV1", "must be at most IV0"),
        ("latest", "must be a version of Kafka"),
    ):
        with pytest.raises(ConfigError, match=reason):
            inter_broker_versions(setting)
