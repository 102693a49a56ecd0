import pytest

from headrace.config import TOPIC_SETTINGS, BrokerConfig, ConfigError, parse_topic_overrides, topic_value, topic_values
from headrace.config.group import check_group_limits, parse_client_metrics, parse_group_overrides

HOUR = 3_600_000


def test_all_topic_settings_of_kafka_4_3_are_known() -> None:
    shown = [name for name, setting in TOPIC_SETTINGS.items() if not setting.hidden]
    assert len(shown) == 33


def test_the_broker_setting_with_the_finest_unit_wins() -> None:
    broker: dict[str, str] = {}
    for setting, value, expected in (
        (None, "", 168 * HOUR),
        ("log.retention.hours", "-1", -1),
        ("log.retention.hours", "2", 2 * HOUR),
        ("log.retention.minutes", "3", 3 * 60_000),
        ("log.retention.ms", "4", 4),
        ("log.retention.ms", "-1", -1),
    ):
        if setting is not None:
            broker[setting] = value
        assert topic_values(BrokerConfig(broker), {})["retention_ms"] == expected, broker


def test_topic_values_override_broker_values_and_fall_back_to_them() -> None:
    broker = BrokerConfig({"log.retention.ms": "4", "log.roll.hours": "1", "log.flush.scheduler.interval.ms": "9"})
    broker.reconfigure({"message.max.bytes": "77"}, {})
    values = topic_values(broker, {"retention.ms": "5", "cleanup.policy": "compact"})
    assert (values["retention_ms"], values["cleanup_policy"]) == (5, ("compact",))
    assert (values["segment_ms"], values["segment_jitter_ms"], values["flush_ms"]) == (HOUR, 0, 9)
    assert values["max_message_bytes"] == 77


def test_settings_of_another_version_of_kafka_are_used_as_far_as_they_can_be_read() -> None:
    of_3_9 = {"segment.bytes": "1000", "message.format.version": "3.0", "cleanup.policy": "?", "retention.ms": "?"}
    values = topic_values(BrokerConfig(), of_3_9)
    assert (values["segment_bytes"], values["cleanup_policy"]) == (1000, ("delete",))
    assert values["retention_ms"] == 168 * HOUR


def test_one_setting_is_read_like_all() -> None:
    name = "unclean.leader.election.enable"
    for broker, topic, expected in (
        ("true", None, True),
        ("true", "false", False),
        ("false", " TRUE", True),
        ("true", "?", True),
    ):
        config, overrides = BrokerConfig({name: broker}), {} if topic is None else {name: topic}
        assert topic_value(config, overrides, name) is expected, (broker, topic)
        assert topic_values(config, overrides)["unclean_leader_election_enable"] is expected, (broker, topic)


def test_the_hidden_segment_size_has_no_lower_limit() -> None:
    assert topic_values(BrokerConfig(), {"internal.segment.bytes": "100"})["segment_bytes"] == 100


def test_invalid_topic_settings_are_refused() -> None:
    throttled = "leader.replication.throttled.replicas"
    invalid = [
        ({"retention": "1"}, "Unknown topic config name: retention"),
        ({"retentoin.ms": "1"}, "Did you mean retention.ms"),
        ({"retention.ms": "-2"}, "at least -1"),
        ({"cleanup.policy": "shred"}, "compact, delete"),
        ({"compression.gzip.level": "0"}, "from 1 to 9, or -1"),
        ({"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"}, "at most max.compaction.lag.ms, which is 1"),
        ({throttled: "1:x"}, r"pairs \[partition\]:\[broker\]"),
        ({throttled: "0:1,\u00b2:1"}, r"pairs \[partition\]:\[broker\]"),
        ({throttled: "1 : 2"}, r"pairs \[partition\]:\[broker\]"),
        ({throttled: "9" * 5000 + ":1"}, r"pairs \[partition\]:\[broker\]"),
        ({"remote.storage.enable": "true"}, "tiered storage is not supported"),
    ]
    for overrides, message in invalid:
        with pytest.raises(ConfigError, match=message):
            pytest.fail(f"{overrides}: {parse_topic_overrides(overrides)}")
    for value in ("", "*", "0:1", "0:1,1:2"):
        parse_topic_overrides({"follower.replication.throttled.replicas": value})


def test_group_settings_stay_within_the_brokers_limits() -> None:
    check_group_limits(
        BrokerConfig(), {"consumer.session.timeout.ms": "50000", "share.isolation.level": "read_committed"}
    )
    with pytest.raises(ConfigError, match=r"from 45000 \(group.consumer.min.session.timeout.ms\) to 60000"):
        check_group_limits(BrokerConfig(), {"consumer.session.timeout.ms": "1"})


def test_invalid_settings_of_a_group_or_a_metrics_subscription_are_refused() -> None:
    for overrides in ({"nothing": "1"}, {"share.auto.offset.reset": "sometime"}):
        with pytest.raises(ConfigError):
            pytest.fail(f"{overrides}: {parse_group_overrides(overrides)}")
    for overrides in ({"interval.ms": "1"}, {"match": "a"}, {"x": "1"}):
        with pytest.raises(ConfigError):
            pytest.fail(f"{overrides}: {parse_client_metrics(overrides)}")
