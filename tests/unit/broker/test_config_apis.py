"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources, compatible with Kafka."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.apis.config_entries import broker_entries
from headrace.broker.apis.configs import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, ConfigApis
from headrace.cluster.stores.embedded import EmbeddedStore
from headrace.cluster.topic_changes import NewTopic
from headrace.config import BrokerConfig
from headrace.errors import ErrorCode
from headrace.server.context import Handler
from headrace.wire.apis import ApiKey
from tests.unit.broker.asking import ask, versions_around
from tests.unit.cluster.clusters import Cluster, started

DESCRIBE, INCREMENTAL, ALTER = ApiKey.DESCRIBE_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS
LIST = ApiKey.LIST_CONFIG_RESOURCES
SET, DELETE, APPEND, SUBTRACT = range(4)
Routes = dict[ApiKey, Handler]


@pytest.fixture
def config() -> BrokerConfig:
    return BrokerConfig({"num.partitions": "2"})


@pytest.fixture
async def cluster(tmp_path: Path, config: BrokerConfig) -> AsyncIterator[Cluster]:
    cluster = await started(EmbeddedStore(tmp_path / "metadata.db", durable=False), config)
    await cluster.admin.create_topics([NewTopic("t")])
    yield cluster
    await cluster.close()


@pytest.fixture
def routes(cluster: Cluster, config: BrokerConfig) -> Routes:
    return ConfigApis(cluster.cache, cluster.admin, config).routes()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("headrace.tests.levels")
    yield logger
    logger.setLevel(logging.NOTSET)


async def describe(routes: Routes, kind: int, name: str, *keys: str, version: int = 4) -> Any:
    request = {
        "resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}],
        "include_synonyms": True,
        "include_documentation": True,
    }
    (result,) = (await ask(routes, DESCRIBE, version, request)).results
    return result


async def values(routes: Routes, kind: int, name: str, *keys: str) -> dict[str, tuple[str | None, int]]:
    """Return value and source by name."""
    result = await describe(routes, kind, name, *keys)
    assert result.error_code == ErrorCode.none
    return {config.name: (config.value, config.config_source) for config in result.configs}


async def change(
    routes: Routes,
    kind: int,
    name: str,
    *changes: tuple[str, int, str | None],
    validate_only: bool = False,
    version: int = 1,
) -> tuple[ErrorCode, str | None]:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
    response = await ask(routes, INCREMENTAL, version, {"resources": resources, "validate_only": validate_only})
    (result,) = response.responses
    return result.error_code, result.error_message


async def replace(routes: Routes, kind: int, name: str, configs: dict[str, str | None], version: int = 2) -> ErrorCode:
    items = [{"name": key, "value": value} for key, value in configs.items()]
    resources = [{"resource_type": kind, "resource_name": name, "configs": items}]
    response = await ask(routes, ALTER, version, {"resources": resources, "validate_only": False})
    code: ErrorCode = response.responses[0].error_code
    return code


async def test_settings_are_described_with_synonyms_and_documentation_if_requested(routes: Routes) -> None:
    for version in versions_around(DESCRIBE):
        result = await describe(routes, TOPIC, "t", "retention.ms", version=version)
        (entry,) = result.configs
        described = entry.name, entry.value, entry.config_source, entry.read_only
        assert described == ("retention.ms", "604800000", 5, False), version
        assert entry.synonyms == (), version  # as in Kafka: log.retention.hours comes only after a log.retention.ms
        if version >= 3:
            assert entry.config_type == 5
            assert "ms" in entry.documentation
    resources = [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}]
    request = {"resources": resources, "include_synonyms": False, "include_documentation": False}
    (result,) = (await ask(routes, DESCRIBE, 4, request)).results
    assert len(result.configs) == 33
    assert all(entry.synonyms == () and entry.documentation is None for entry in result.configs)


async def test_synonyms_are_in_order_of_precedence(routes: Routes) -> None:
    await change(routes, BROKER, "", ("log.retention.ms", SET, "88"))
    await change(routes, BROKER, "0", ("log.retention.ms", SET, "77"))
    assert await values(routes, TOPIC, "t", "retention.ms") == {"retention.ms": ("77", 2)}
    await change(routes, TOPIC, "t", ("retention.ms", SET, "66"))
    (entry,) = (await describe(routes, TOPIC, "t", "retention.ms")).configs
    assert [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("retention.ms", "66", 1),
        ("log.retention.ms", "77", 2),
        ("log.retention.ms", "88", 3),
        ("log.retention.hours", "168", 5),
    ]


async def test_broker_settings_have_source_type_and_flags(routes: Routes) -> None:
    result = await describe(routes, BROKER, "0", "num.partitions", "message.max.bytes", "ssl.key.password")
    entries = {entry.name: entry for entry in result.configs}
    assert (entries["num.partitions"].config_source, entries["num.partitions"].read_only) == (4, True)
    assert (entries["message.max.bytes"].config_source, entries["message.max.bytes"].read_only) == (5, False)
    assert (entries["ssl.key.password"].is_sensitive, entries["ssl.key.password"].config_type) == (True, 9)
    assert len((await describe(routes, BROKER, "0")).configs) > 150


def test_advertised_listeners_default_to_listeners() -> None:
    for settings, expected in (
        ({}, ("PLAINTEXT://127.0.0.1:9092", 5)),
        ({"listeners": "PLAINTEXT://:1"}, ("PLAINTEXT://:1", 4)),
    ):
        (entry,) = broker_entries(BrokerConfig(settings), {}, ["advertised.listeners"])
        assert (entry["value"], entry["config_source"]) == expected


async def test_secrets_are_hidden(routes: Routes) -> None:
    await change(routes, BROKER, "0", ("listener.name.a.ssl.key.password", SET, "hunter2"))
    (entry,) = (await describe(routes, BROKER, "0", "listener.name.a.ssl.key.password")).configs
    assert (entry.value, entry.is_sensitive, [synonym.value for synonym in entry.synonyms]) == (None, True, [None])


async def test_cluster_defaults_are_the_settings_of_all_brokers(routes: Routes) -> None:
    assert await values(routes, BROKER, "") == {}
    await change(routes, BROKER, "", ("message.max.bytes", SET, "5"))
    await change(routes, BROKER, "0", ("message.max.bytes", SET, "6"))
    assert await values(routes, BROKER, "") == {"message.max.bytes": ("5", 3)}


async def test_missing_and_invalid_resources_are_refused(routes: Routes) -> None:
    expected = {
        (TOPIC, "nothing"): ErrorCode.unknown_topic_or_partition,
        (TOPIC, "a b"): ErrorCode.invalid_topic_exception,
        (BROKER, "7"): ErrorCode.invalid_request,
        (BROKER, "x"): ErrorCode.invalid_request,
        (BROKER, "--5"): ErrorCode.invalid_request,
        (BROKER, "\u00b2"): ErrorCode.invalid_request,
        (BROKER, "9" * 5000): ErrorCode.invalid_request,
        (BROKER, "00"): ErrorCode.invalid_request,
        (BROKER_LOGGER, ""): ErrorCode.invalid_request,
        (BROKER_LOGGER, "7"): ErrorCode.invalid_request,
        (GROUP, ""): ErrorCode.invalid_request,
        (CLIENT_METRICS, ""): ErrorCode.invalid_request,
        (1, "x"): ErrorCode.invalid_request,
    }
    setting = ("retention.ms", SET, "5")
    assert {case: (await describe(routes, *case)).error_code for case in expected} == expected
    assert {case: (await change(routes, *case, setting))[0] for case in expected} == expected
    assert (await describe(routes, TOPIC, "")).error_code == ErrorCode.invalid_topic_exception


async def test_settings_are_changed_incrementally(routes: Routes) -> None:
    done = (ErrorCode.none, None)
    for version in versions_around(INCREMENTAL):
        assert await change(routes, TOPIC, "t", ("retention.ms", SET, "5"), version=version) == done, version
        assert await values(routes, TOPIC, "t", "retention.ms") == {"retention.ms": ("5", 1)}, version
        await change(routes, TOPIC, "t", ("segment.ms", SET, "9"), ("retention.ms", DELETE, None))
        assert await values(routes, TOPIC, "t", "retention.ms", "segment.ms") == {
            "retention.ms": ("604800000", 5),
            "segment.ms": ("9", 1),
        }, version
    assert await change(routes, TOPIC, "t", ("nothing", DELETE, None)) == done


async def test_list_items_are_appended_and_subtracted(routes: Routes) -> None:
    seen = []
    for operation, items in ((APPEND, "compact"), (APPEND, "compact"), (SUBTRACT, "delete"), (SUBTRACT, "compact")):
        assert await change(routes, TOPIC, "t", ("cleanup.policy", operation, items)) == (ErrorCode.none, None)
        seen.append((await values(routes, TOPIC, "t", "cleanup.policy"))["cleanup.policy"][0])
    assert seen == ["delete,compact", "delete,compact", "compact", ""]


async def test_an_invalid_change_is_refused_as_a_whole(routes: Routes) -> None:
    for changes, code, message in (
        ([("nothing", SET, "1")], ErrorCode.invalid_config, "Unknown topic config name: nothing"),
        ([("retention.ms", SET, "x")], ErrorCode.invalid_config, "'x' for retention.ms: must be a whole number"),
        ([("retention.ms", SET, None)], ErrorCode.invalid_request, "Null value not supported for retention.ms"),
        ([("retention.ms", APPEND, "1")], ErrorCode.invalid_config, "its type is not LIST"),
        ([("nothing", APPEND, "1")], ErrorCode.invalid_config, "its type is not LIST"),
        ([("cleanup.policy", APPEND, "shred")], ErrorCode.invalid_config, "compact, delete"),
        ([("retention.ms", 7, "1")], ErrorCode.invalid_request, "Unknown operation type 7 for retention.ms"),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.invalid_request, "duplicate config keys"),
        ([("retention.ms", SET, "1"), ("segment.bytes", SET, "2")], ErrorCode.invalid_config, "at least 1048576"),
    ):
        actual, text = await change(routes, TOPIC, "t", *changes)
        assert (actual, message in str(text)) == (code, True), (changes, text)
        assert await values(routes, TOPIC, "t", "retention.ms") == {"retention.ms": ("604800000", 5)}, changes


async def test_invalid_changes_of_broker_settings_are_refused(routes: Routes) -> None:
    for name, key, value, message in (
        ("0", "num.partitions", "5", "is read-only"),
        ("0", "nothing.there", "5", "Unknown broker setting nothing.there"),
        ("0", "message.max.bytes", "-5", "at least 0"),
        ("", "ssl.key.password", "x", "can only be set per broker"),
    ):
        code, text = await change(routes, BROKER, name, (key, SET, value))
        assert (code, message in str(text)) == (ErrorCode.invalid_request, True), (key, text)


async def test_a_broker_setting_takes_effect_immediately(routes: Routes, config: BrokerConfig) -> None:
    await change(routes, BROKER, "0", ("message.max.bytes", SET, "5"), validate_only=True)
    assert config.message_max_bytes == 1_048_588
    await change(routes, BROKER, "0", ("message.max.bytes", SET, "5"))
    assert config.message_max_bytes == 5


async def test_a_duplicate_resource_is_refused(routes: Routes) -> None:
    configs = [{"name": "retention.ms", "config_operation": SET, "value": "5"}]
    resources = [{"resource_type": TOPIC, "resource_name": name, "configs": configs} for name in ("t", "t", "nothing")]
    response = await ask(routes, INCREMENTAL, 1, {"resources": resources, "validate_only": False})
    assert [result.error_code for result in response.responses] == [
        ErrorCode.invalid_request,
        ErrorCode.invalid_request,
        ErrorCode.unknown_topic_or_partition,
    ]


async def test_all_settings_are_replaced(routes: Routes) -> None:
    for version in versions_around(ALTER):
        await change(routes, TOPIC, "t", ("retention.ms", SET, "5"))
        assert await replace(routes, TOPIC, "t", {"segment.ms": "9"}, version) == ErrorCode.none, version
        assert await values(routes, TOPIC, "t", "retention.ms", "segment.ms") == {
            "retention.ms": ("604800000", 5),
            "segment.ms": ("9", 1),
        }, version


async def test_an_invalid_replacement_is_refused(routes: Routes) -> None:
    assert await replace(routes, TOPIC, "t", {"nothing": "1"}) == ErrorCode.invalid_config
    assert await replace(routes, TOPIC, "t", {"segment.ms": None}) == ErrorCode.invalid_request
    assert await replace(routes, TOPIC, "nothing", {"segment.ms": "1"}) == ErrorCode.unknown_topic_or_partition
    assert await replace(routes, BROKER_LOGGER, "0", {"root": "INFO"}) == ErrorCode.invalid_request
    assert await replace(routes, TOPIC, "t", {}) == ErrorCode.none


async def test_log_levels_are_settings(routes: Routes, logger: logging.Logger) -> None:
    assert await change(routes, BROKER_LOGGER, "0", (logger.name, SET, "ERROR")) == (ErrorCode.none, None)
    assert logger.level == logging.ERROR
    assert await values(routes, BROKER_LOGGER, "0", logger.name) == {logger.name: ("ERROR", 6)}
    await change(routes, BROKER_LOGGER, "0", (logger.name, SET, "DEBUG"), validate_only=True)
    assert logger.level == logging.ERROR
    await change(routes, BROKER_LOGGER, "0", (logger.name, DELETE, None))
    assert logger.level == logging.NOTSET
    refused = {
        ("root", SET, "LOUD"): ErrorCode.invalid_config,
        ("headrace.nobody", SET, "INFO"): ErrorCode.invalid_config,
        ("root", DELETE, None): ErrorCode.invalid_request,
        ("root", APPEND, "INFO"): ErrorCode.invalid_request,
    }
    assert {item: (await change(routes, BROKER_LOGGER, "0", item))[0] for item in refused} == refused


async def test_groups_and_metrics_subscriptions_have_settings_before_they_exist(routes: Routes) -> None:
    key = "consumer.session.timeout.ms"
    assert await values(routes, GROUP, "g", key) == {key: ("45000", 5)}
    await change(routes, GROUP, "g", (key, SET, "50000"))
    assert await values(routes, GROUP, "g", key) == {key: ("50000", 8)}
    code, message = await change(routes, GROUP, "g", (key, SET, "1"))
    assert code == ErrorCode.invalid_config
    assert "from 45000" in str(message)
    await change(routes, CLIENT_METRICS, "s", ("interval.ms", SET, "1000"))
    assert await values(routes, CLIENT_METRICS, "s") == {
        "interval.ms": ("1000", 7),
        "match": ("", 5),
        "metrics": ("", 5),
    }


async def test_resources_are_listed(routes: Routes) -> None:
    await change(routes, CLIENT_METRICS, "s", ("interval.ms", SET, "1000"))
    await change(routes, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    for version, expected in ((0, ["s"]), (1, ["t", "0", "0", "s", "g"])):
        response = await ask(routes, LIST, version, {"resource_types": ()})
        assert [resource.resource_name for resource in response.config_resources] == expected, version
    unknown = await ask(routes, LIST, 1, {"resource_types": [TOPIC, 1]})
    assert (unknown.error_code, unknown.config_resources) == (ErrorCode.unsupported_version, ())
