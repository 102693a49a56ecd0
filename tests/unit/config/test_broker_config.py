import re
from pathlib import Path
from typing import get_type_hints

import pytest

import headrace
from headrace.config import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig, ConfigError, check_dynamic, load
from headrace.config.broker import Origin
from headrace.config.coordinator import ASSIGNOR_NAMES
from headrace.config.definition import BOOLEAN, DOUBLE, INT, LIST, LONG, SHORT
from headrace.config.group import GROUP_SETTINGS
from headrace.config.inapplicable import INAPPLICABLE, why_idle
from headrace.storage.log.config import LogConfig
from tests.support.refusals import wrong_reasons

KINDS = {BOOLEAN: bool, INT: int, SHORT: int, LONG: int, DOUBLE: float, LIST: tuple[str, ...]}


def test_every_setting_has_a_typed_attribute() -> None:
    hints = get_type_hints(BrokerConfig)
    for setting in BROKER_SETTINGS.values():
        kind = KINDS.get(setting.type, str)
        assert hints.pop(setting.attribute) == (kind if setting.default is not None else kind | None), setting.name
    assert not hints


def test_exactly_the_settings_that_nothing_reads_are_listed_as_ignored() -> None:
    """If this fails for a setting that now has an effect, remove it from headrace.config.inapplicable."""
    root = Path(headrace.__file__).parent
    sources = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] not in {"config", "pipeline"}]
    readers = [root / "config" / name for name in ("__init__.py", "broker.py", "listeners.py")]
    code = "\n".join(path.read_text() for path in [*sources, *readers])
    attributes = set(re.findall(r"config\.(\w+)", code))
    strings = set(re.findall(r'"(?=([\w.]+)"(?!:))', code))
    of_topics = {
        synonym
        for setting in TOPIC_SETTINGS.values()
        if setting.attribute in LogConfig.__slots__
        for synonym in setting.synonyms
    }
    limits_of_groups = {
        f"group.{part}.{bound}.{rest}"
        for part, _, rest in (name.partition(".") for name in GROUP_SETTINGS)
        for bound in ("min", "max")
    }
    for name, setting in BROKER_SETTINGS.items():
        named = setting.attribute in attributes or name in strings
        is_read = named or name in of_topics or name in limits_of_groups
        assert is_read == (why_idle(name) is None), name
    for name, setting in TOPIC_SETTINGS.items():
        if not setting.hidden and name != "remote.storage.enable":
            is_read = setting.attribute in LogConfig.__slots__ or name in strings
            assert is_read == (why_idle(name) is None), name


def test_no_key_is_both_a_setting_and_inapplicable() -> None:
    assert not INAPPLICABLE & BROKER_SETTINGS.keys()


def test_synonyms_are_settings() -> None:
    for setting in [*BROKER_SETTINGS.values(), *TOPIC_SETTINGS.values()]:
        assert all(synonym in BROKER_SETTINGS for synonym in setting.synonyms)


def test_the_default_configuration_listens_locally() -> None:
    config = BrokerConfig()
    assert (config.node_id, config.num_partitions, config.auto_create_topics_enable) == (0, 1, True)
    assert [str(listener) for listener in config.parsed_listeners] == ["PLAINTEXT://127.0.0.1:9092"]
    assert not config.warnings


def test_the_command_line_overrides_the_environment_which_overrides_the_file() -> None:
    config = load(
        "num.partitions=2\nlog.retention.hours=2\nlog.segment.bytes=2000000",
        {"HEADRACE_LOG_RETENTION_HOURS": "3", "HEADRACE_NUM_PARTITIONS": "3"},
        ["num.partitions=4"],
        {"log.segment.bytes": "1", "log.dirs": "/data"},
    )
    assert (config.num_partitions, config.log_retention_hours, config.log_segment_bytes) == (4, 3, 2_000_000)
    assert config.log_dirs == ("/data",)


def test_invalid_properties_are_refused_with_a_hint() -> None:
    invalid = [
        ({"log.retentoin.ms": "1"}, r"Unknown setting log\.retentoin\.ms\. Did you mean log.retention.ms"),
        ({"num.partitions": "many"}, r"'many' for num.partitions: must be a whole number"),
        ({"listeners": "nowhere"}, r"'nowhere' for listeners: must be NAME://host:port"),
        ({"listeners": "PLAINTEXT://:" + "9" * 5000}, r"for listeners: must be NAME://host:port"),
        ({"headrace.http.listener": "9" * 5000}, r"for headrace.http.listener: must be host:port"),
        ({"listeners": "A://:1"}, r"no protocol for A"),
        ({"listeners": "PLAINTEXT://:1,PLAINTEXT://:2"}, r"listener name PLAINTEXT is used twice"),
        ({"listeners": "SSL://:1"}, r"TLS and SASL are not supported"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, r"address or name that clients can connect to"),
        ({"advertised.listeners": "SSL://host:1"}, r"must begin with a name from listeners: PLAINTEXT"),
        ({"advertised.listeners": "A://host:1"}, r"for advertised.listeners: must begin with a name from listeners"),
        ({"authorizer.class.name": "x"}, r"Headrace has no authorization"),
        ({"zookeeper.connect": "z:1", "zookeeper.set.acl": "true"}, r"'true' for zookeeper.set.acl: connections to"),
        ({"zookeeper.connect": "z:1", "zookeeper.ssl.client.enable": " TRUE"}, r"may change the cluster"),
        ({"broker.id": "1", "node.id": "2"}, r"must equal node.id"),
        ({"group.min.session.timeout.ms": "7", "group.max.session.timeout.ms": "6"}, r"at most group.max.session"),
        ({"listener.security.protocol.map": "A:B"}, r"NAME:PROTOCOL"),
        ({"group.consumer.assignors": "sticky"}, r"must be a list of uniform, range"),
        ({"group.consumer.assignors": ""}, r"must be a list of uniform, range"),
    ]
    for properties, message in invalid:
        with pytest.raises(ConfigError, match=message):
            pytest.fail(f"{properties}: {BrokerConfig(properties)}")


def test_log_dir_counts_if_log_dirs_is_not_set() -> None:
    defaults = {"log.dirs": "/default"}
    assert load("log.dir=/one", defaults=defaults).log_dirs is None
    assert load("log.dir=/one\nlog.dirs=/two", defaults=defaults).log_dirs == ("/two",)
    assert load("", {"HEADRACE_LOG_DIR": "/one"}, defaults=defaults).log_dir == ("/one",)
    assert load("", defaults=defaults).log_dirs == ("/default",)
    for blank in ("", " ", ","):
        assert load("", {"HEADRACE_LOG_DIR": blank}, defaults=defaults).log_dirs == ("/default",)


def test_a_variable_need_not_repeat_the_prefix() -> None:
    variables = {"HEADRACE_HTTP_LISTENER": "127.0.0.1:9404", "HEADRACE_HEADRACE_BUSY_POLL_US": "0"}
    config = load("", variables)
    assert (config.headrace_http_listener, config.headrace_busy_poll_us) == ("127.0.0.1:9404", 0)


def test_other_variables_with_the_prefix_are_ignored() -> None:
    for name in ("HTTP_PORT", "HTTP_HOST", "BUSY", "SETTINGS", "HTTP_TOKEN"):
        assert load("", {f"HEADRACE_{name}": "tcp://10.0.0.1:80"}).warnings == [], name


def test_a_misspelt_variable_without_the_second_prefix_is_reported() -> None:
    with pytest.raises(ConfigError, match=r"HEADRACE_HTTP_LISTNER.*headrace\.http\.listener"):
        load("", {"HEADRACE_HTTP_LISTNER": "127.0.0.1:9404"})


def test_values_that_have_no_effect_are_reported() -> None:
    idle = [
        ({"replica.selector.class": "com.example.Nearest"}, "replica.selector.class=com.example.Nearest has no effect"),
        ({"group.coordinator.rebalance.protocols": "classic,streams"}, "contains streams, which Headrace"),
        ({"create.topic.policy.class.name": "com.example.Policy"}, "plug-ins written in Java are not supported"),
        ({"config.providers": "file"}, "values such as ${file:...} are not replaced"),
    ]
    for properties, warning in idle:
        assert any(warning in found for found in BrokerConfig(properties).warnings), warning
        assert not any(warning in found for found in BrokerConfig({}).warnings)


def test_turning_zookeeper_tls_off_is_accepted_but_has_no_effect() -> None:
    for properties in ({"zookeeper.set.acl": "true"}, {"zookeeper.connect": "z:1"}):
        config = BrokerConfig({"zookeeper.ssl.client.enable": "false", **properties})
        assert any(warning.startswith("zookeeper.ssl.client.enable has no effect") for warning in config.warnings)


def test_kafkas_server_properties_are_accepted() -> None:
    config = load("""
        process.roles=broker,controller
        node.id=1
        controller.quorum.bootstrap.servers=localhost:9093
        listeners=PLAINTEXT://:9092,CONTROLLER://:9093
        inter.broker.listener.name=PLAINTEXT
        advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
        controller.listener.names=CONTROLLER
        listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
        num.network.threads=3
        log.dirs=/tmp/kraft-combined-logs
        offsets.topic.replication.factor=1
        share.coordinator.state.topic.min.isr=1
        log.retention.hours=168
    """)
    assert config.node_id == 1
    assert [str(listener) for listener in config.parsed_listeners] == ["PLAINTEXT://:9092"]
    warned = {warning.split()[0] for warning in config.warnings}
    assert {"process.roles", "num.network.threads", "share.coordinator.state.topic.min.isr"} <= warned
    assert "log.retention.hours" not in warned


def test_broker_id_is_an_alias_of_node_id() -> None:
    assert BrokerConfig({"broker.id": "5"}).node_id == 5
    assert BrokerConfig({"node.id": "5"}).broker_id == 5
    assert BrokerConfig({"broker.id": "-1"}).node_id == 0


def test_settings_of_one_listener_are_validated_like_the_setting_itself() -> None:
    config = BrokerConfig({"listener.name.internal.ssl.client.auth": "required"})
    assert dict(config.listener_settings()) == {"listener.name.internal.ssl.client.auth": "required"}
    BrokerConfig({"listener.name.internal.plain.sasl.jaas.config": "anything"})
    with pytest.raises(ConfigError, match="one of required, requested, none"):
        BrokerConfig({"listener.name.internal.ssl.client.auth": "maybe"})
    with pytest.raises(ConfigError, match="Unknown setting"):
        BrokerConfig({"listener.name.internal.nothing": "x"})


def test_dynamic_values_override_static_ones_until_removed() -> None:
    config = BrokerConfig({"log.retention.ms": "1"})
    assert config.reconfigure({"log.retention.ms": "2"}, {"log.retention.ms": "3"}) == {"log.retention.ms"}
    assert config.log_retention_ms == 3
    config.reconfigure({"log.retention.ms": "2"}, {})
    assert config.log_retention_ms == 2
    config.reconfigure({}, {})
    assert config.log_retention_ms == 1


def test_an_invalid_dynamic_value_is_ignored() -> None:
    config = BrokerConfig()
    assert config.reconfigure({"message.max.bytes": "lots"}, {}) == set()
    assert config.message_max_bytes == 1_048_588


def test_origins_are_in_order_of_precedence() -> None:
    config = BrokerConfig({"log.retention.minutes": "4"})
    config.reconfigure({"log.retention.ms": "2"}, {"log.retention.ms": "3"})
    assert config.origins("log.retention.ms") == [
        Origin("log.retention.ms", "3", 2),
        Origin("log.retention.ms", "2", 3),
        Origin("log.retention.minutes", "4", 4),
        Origin("log.retention.hours", "168", 5),
    ]


def test_invalid_dynamic_changes_are_refused() -> None:
    reasons = {
        ("num.partitions", "3", True): "is read-only",
        ("ssl.keystore.location", "/x", False): "can only be set per broker",
        ("log.retention.ms", "x", True): "a whole number",
        ("log.retentoin.ms", "1", True): "Did you mean log.retention.ms",
        ("process.roles", "broker", True): "cannot be changed: every Headrace broker",
    }

    def change(given: tuple[str, str, bool]) -> None:
        key, value, per_broker = given
        check_dynamic(key, value, per_broker=per_broker)

    assert wrong_reasons(reasons, change, ConfigError) == {}


def test_the_http_listener_is_an_address_or_a_port() -> None:
    addresses = {"9404": ("127.0.0.1", 9404), "0.0.0.0:0": ("0.0.0.0", 0), "[::1]:80": ("::1", 80), "": None}
    for text, address in addresses.items():
        assert load(assignments=[f"headrace.http.listener={text}"]).parsed_http_listener == address


def test_servers_of_zookeeper_may_have_ports_and_a_path() -> None:
    for servers in ("zk", "zk1:2181,zk2:2181/a/b", "[::1]:2181", "zk:2181/"):
        assert load(assignments=[f"zookeeper.connect={servers}"]).zookeeper_connect == servers


def test_malformed_addresses_are_refused() -> None:
    malformed = {
        ("headrace.http.listener", "must be host:port"): (
            ":9404",
            "host",
            "host:",
            "host:70000",
            "http://127.0.0.1:9404/",
        ),
        ("zookeeper.connect", "must be host:port,host:port/path"): (
            "",
            "a:b:c",
            "zk:2181,",
            "zk:2181/a/",
            "zk:2181//a",
            "zk 1",
        ),
    }
    for (setting, reason), texts in malformed.items():
        for text in texts:
            with pytest.raises(ConfigError, match=f"for {setting}: {reason}"):
                pytest.fail(f"{setting}={text}: {load(assignments=[f'{setting}={text}'])}")


FOREIGN = "my.plugin.depth=3\nlog.retention.hour=24\nnum.partitions=7\nplugin.password=secret\n"


def test_all_unknown_keys_of_a_file_are_in_one_warning() -> None:
    config = load(FOREIGN)
    assert config.num_partitions == 7
    [warning] = config.warnings
    assert "my.plugin.depth; log.retention.hour (Did you mean log.retention.hours?); plugin.password" in warning
    assert "secret" not in warning


def test_unknown_keys_of_a_file_can_be_refused_by_file_environment_or_assignment() -> None:
    key = "headrace.unknown.settings"
    refusing: list[tuple[str, dict[str, str], list[str]]] = [
        (FOREIGN + f"{key}=refuse\n", {}, []),
        (FOREIGN, {"HEADRACE_HEADRACE_UNKNOWN_SETTINGS": "refuse"}, []),
        (FOREIGN, {}, [f"{key}=refuse"]),
    ]
    for file, environment, assignments in refusing:
        with pytest.raises(ConfigError) as refused:
            load(file, environment, assignments)
        assert str(refused.value).splitlines() == [
            "3 settings are invalid:",
            "  Unknown setting my.plugin.depth.",
            "  Unknown setting log.retention.hour. Did you mean log.retention.hours?",
            "  Unknown setting plugin.password.",
        ]


def test_unknown_keys_outside_the_file_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"^Unknown setting my\.plugin\.depth\.$"):
        load(FOREIGN, assignments=["my.plugin.depth=4"])
    with pytest.raises(ConfigError, match=r"HEADRACE_LOG_RETENTION_HOUR\b.*Did you mean log\.retention\.hours"):
        load(FOREIGN, {"HEADRACE_LOG_RETENTION_HOUR": "24"})


def test_bad_values_are_reported_together() -> None:
    with pytest.raises(ConfigError) as refused:
        load("num.partitions=0\nlog.retention.hours=long\n", assignments=["message.max.bytes=-1", "bogus=1"])
    lines = str(refused.value).splitlines()
    assert lines[0] == "4 settings are invalid:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        "Invalid value '0' for num.partitions",
        "Invalid value 'long' for log.retention.hours",
        "Invalid value '-1' for message.max.bytes",
        "Unknown setting bogus.",
    ]


def test_an_invalid_policy_for_unknown_settings_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be one of warn, refuse"):
        load("headrace.unknown.settings=maybe\n")


def test_kafkas_classes_of_assignors_and_selectors_are_accepted() -> None:
    package = "org.apache.kafka"
    config = BrokerConfig(
        {
            "group.consumer.assignors": f"{package}.coordinator.group.assignor.RangeAssignor,uniform",
            "replica.selector.class": f"{package}.common.replica.RackAwareReplicaSelector",
        }
    )
    assert [ASSIGNOR_NAMES[name] for name in config.group_consumer_assignors] == ["range", "uniform"]
    assert config.warnings == []
    assert BrokerConfig({"replica.selector.class": f"{package}.common.replica.LeaderSelector"}).warnings == []
