"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs and ListConfigResources."""

import contextlib
from typing import Any, Final

from headrace.wire.apis import ApiKey
from tests.parity.both import Both, Names, every_version
from tests.support.waiting import wait_for

UNKNOWN, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(*resources: tuple[int, str, list[str] | None], **options: bool) -> dict[str, Any]:
    return {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name, keys in resources
        ],
        "include_synonyms": True,
        **options,
    }


def incremental(kind: int, name: str, *changes: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def legacy(kind: int, name: str, **values: str | None) -> dict[str, Any]:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in values.items()]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def altering(*resources: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
    return {"resources": resources, "validate_only": validate_only}


@every_version(ApiKey.DESCRIBE_CONFIGS)
def test_settings_of_a_topic(version: int, both: Both, name: Names) -> None:
    plain = both.create(name())
    special = both.create(
        name(), configs={"retention.ms": "99", "cleanup.policy": "compact", "segment.bytes": "2000000"}
    )
    for synonyms in (False, True):
        request = describe((TOPIC, plain, None), (TOPIC, special, None), include_synonyms=synonyms)
        both.ask(ApiKey.DESCRIBE_CONFIGS, version, request, case=f"synonyms: {synonyms}")
    keys = ["retention.ms", "no.such.setting", "segment.bytes"]
    both.ask(ApiKey.DESCRIBE_CONFIGS, version, describe((TOPIC, special, keys), (TOPIC, plain, [])), case="some")
    documented = describe((TOPIC, special, ["retention.ms"]), include_documentation=True)
    both.ask(ApiKey.DESCRIBE_CONFIGS, version, documented, case="documented")


@every_version(ApiKey.DESCRIBE_CONFIGS)
def test_settings_of_missing_resources(version: int, both: Both) -> None:
    for kind, resource in (
        (TOPIC, "no-such-topic"),
        (TOPIC, ""),
        (TOPIC, "not valid"),
        (BROKER, "7"),
        (BROKER, "x"),
        (BROKER, ""),
        (BROKER_LOGGER, "7"),
        (BROKER_LOGGER, ""),
        (CLIENT_METRICS, "no-such-subscription"),
        (CLIENT_METRICS, ""),
        (GROUP, ""),
        (UNKNOWN, "x"),
        (99, "x"),
    ):
        request = describe((kind, resource, ["min.insync.replicas"]))
        both.ask(ApiKey.DESCRIBE_CONFIGS, version, request, case=f"{kind} {resource!r}")
    both.ask(ApiKey.DESCRIBE_CONFIGS, version, describe(), case="nothing")


BROKER_SETTINGS: Final = (
    "log.retention.ms",
    "log.segment.bytes",
    "num.io.threads",
    "min.insync.replicas",
    "compression.type",
    "ssl.keystore.password",
    "log.cleanup.policy",
    "auto.create.topics.enable",
    "message.max.bytes",
    "log.retention.hours",
    "unclean.leader.election.enable",
)


@every_version(ApiKey.DESCRIBE_CONFIGS)
def test_settings_of_the_broker(version: int, both: Both) -> None:
    both.ask(ApiKey.DESCRIBE_CONFIGS, version, describe((BROKER, "0", list(BROKER_SETTINGS))))
    both.ask(ApiKey.DESCRIBE_CONFIGS, version, describe((BROKER, "", list(BROKER_SETTINGS))), case="of all brokers")


@every_version(ApiKey.INCREMENTAL_ALTER_CONFIGS)
def test_settings_are_changed_one_by_one(version: int, both: Both, name: Names) -> None:
    topic = both.create(name(), configs={"cleanup.policy": "compact"})

    def alter(case: str, *changes: tuple[str, int, str | None], resource: tuple[int, str] = (TOPIC, topic)) -> None:
        change = incremental(*resource, *changes)
        both.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, altering(change, validate_only=True), case=f"dry {case}")
        both.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, altering(change), case=case)
        if resource[0] == TOPIC:
            keys = ["retention.ms", "cleanup.policy", "segment.bytes", "max.message.bytes"]
            await_same(both, describe((*resource, keys)), case)

    alter("set", ("retention.ms", SET, "5000"), ("segment.bytes", SET, "1048577"))
    alter("set to the same value", ("retention.ms", SET, "5000"))
    alter("delete", ("retention.ms", DELETE, None))
    alter("delete an unset setting", ("retention.ms", DELETE, None))
    alter("append", ("cleanup.policy", APPEND, "delete"))
    alter("append a present item", ("cleanup.policy", APPEND, "delete"))
    if version == 0:
        return  # it has the same fields as version 1
    alter("subtract", ("cleanup.policy", SUBTRACT, "compact"))
    alter("subtract a missing item", ("cleanup.policy", SUBTRACT, "compact"))
    alter("append to a non-list", ("retention.ms", APPEND, "7"))
    alter("subtract from a non-list", ("retention.ms", SUBTRACT, "7"))
    alter("append an invalid item", ("cleanup.policy", APPEND, "burn"))
    alter("unknown setting", ("no.such.setting", SET, "1"))
    alter("delete an unknown setting", ("no.such.setting", DELETE, None))
    alter("no value", ("retention.ms", SET, None))
    alter("bad value", ("retention.ms", SET, "soon"))
    alter("out of range", ("max.message.bytes", SET, "-1"))
    alter("the same twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    alter("one good and one bad", ("retention.ms", SET, "777"), ("segment.bytes", SET, "x"))
    alter("unknown operation", ("retention.ms", 9, "1"))
    alter("nothing")
    for kind, resource in (
        (TOPIC, "no-such-topic"),
        (TOPIC, ""),
        (BROKER, "7"),
        (BROKER, "x"),
        (UNKNOWN, "x"),
        (99, "x"),
        (BROKER_LOGGER, "7"),
    ):
        alter(f"{kind} {resource!r}", ("min.insync.replicas", SET, "1"), resource=(kind, resource))
    both.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, altering(), case="nothing")
    twice = [incremental(TOPIC, topic, ("retention.ms", SET, value)) for value in "12"]
    both.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, version, altering(*twice), case="resource twice")


@every_version(ApiKey.ALTER_CONFIGS)
def test_settings_are_replaced(version: int, both: Both, name: Names) -> None:
    topic = both.create(name(), configs={"cleanup.policy": "compact", "retention.ms": "7"})

    def alter(case: str, *resources: dict[str, Any]) -> None:
        both.ask(ApiKey.ALTER_CONFIGS, version, altering(*resources, validate_only=True), case=f"dry {case}")
        both.ask(ApiKey.ALTER_CONFIGS, version, altering(*resources), case=case)
        await_same(both, describe((TOPIC, topic, ["retention.ms", "cleanup.policy", "segment.bytes"])), case)

    alter("replace", legacy(TOPIC, topic, segment_bytes="2097152"))
    alter("nothing", legacy(TOPIC, topic))
    alter("unknown setting", legacy(TOPIC, topic, no_such="1"))
    alter("no value", legacy(TOPIC, topic, retention_ms=None))
    alter("bad value", legacy(TOPIC, topic, retention_ms="soon"))
    alter("unknown topic", legacy(TOPIC, "no-such-topic", retention_ms="1"))
    alter("unknown broker", legacy(BROKER, "7", log_retention_ms="1"))
    alter("unknown kind", legacy(99, "x", retention_ms="1"))
    # Not compared: a topic twice in a request, which Kafka never answers.


def test_settings_of_the_broker_are_changed(both: Both) -> None:
    keys = ["log.retention.ms", "message.max.bytes", "num.io.threads", "log.cleanup.policy"]

    def alter(case: str, resource: str, *changes: tuple[str, int, str | None]) -> None:
        request = altering(incremental(BROKER, resource, *changes))
        both.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request, case=case)
        await_same(both, describe((BROKER, "0", keys), (BROKER, "", keys)), case)

    try:
        alter("one broker", "0", ("log.retention.ms", SET, "123456789"))
        alter("all brokers", "", ("message.max.bytes", SET, "2000000"))
        alter("read only", "0", ("node.id", SET, "4"))
        alter("read only for all", "", ("log.dirs", SET, "/x"))
        alter("unknown", "0", ("no.such.setting", SET, "4"))
        alter("bad", "0", ("log.retention.ms", SET, "soon"))
        alter("name of the topic setting", "0", ("retention.ms", SET, "4"))
        alter("list", "", ("log.cleanup.policy", APPEND, "compact"))
    finally:
        alter("one broker again", "0", ("log.retention.ms", DELETE, None))
        removed = [("message.max.bytes", DELETE, None), ("log.cleanup.policy", DELETE, None)]
        alter("all brokers again", "", *removed)


@every_version(ApiKey.LIST_CONFIG_RESOURCES)
def test_resources_with_settings_are_listed(version: int, both: Both, name: Names) -> None:
    topic = both.create(name())
    for kinds in ([], [BROKER], [BROKER_LOGGER], [CLIENT_METRICS], [GROUP], [BROKER, BROKER_LOGGER], [UNKNOWN], [99]):
        both.send(ApiKey.LIST_CONFIG_RESOURCES, version, {"resource_types": kinds})

        def without_other_topics(answer: Any) -> Any:
            listed = [
                item
                for item in answer["config_resources"]
                if item.get("resource_type") != TOPIC or item["resource_name"] == topic
            ]
            return {**answer, "config_resources": listed}

        both.receive(ApiKey.LIST_CONFIG_RESOURCES, version, case=f"{kinds}", only=without_other_topics)


def await_same(both: Both, described: dict[str, Any], case: str) -> None:
    """Repeat until Kafka, which applies changes later, answers as Headrace; record remaining differences."""
    before = both.take_differences()

    def is_same() -> bool:
        both.take_differences()
        both.ask(ApiKey.DESCRIBE_CONFIGS, 4, described, case=f"after: {case}")
        return not both.differences

    with contextlib.suppress(AssertionError):
        wait_for(is_same, case, timeout_s=10)
    both.differences[:0] = before
