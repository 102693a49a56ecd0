"""CreateTopics, DeleteTopics and CreatePartitions, and all refusals."""

import uuid
from typing import Any

import pytest

from headrace.wire.apis import ApiKey
from tests.parity.both import UNKNOWN_ID, Both, Names, Side, every_version


def topic(name: str, num_partitions: int = 1, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": num_partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
        **fields,
    }


def create(*topics: dict[str, Any], validate_only: bool = False) -> dict[str, Any]:
    return {"topics": topics, "timeout": 30_000, "validate_only": validate_only}


def configs(**values: str | None) -> list[dict[str, Any]]:
    return [{"name": name.replace("_", "."), "value": value} for name, value in values.items()]


def assigned(*places: tuple[int, list[int]]) -> list[dict[str, Any]]:
    return [{"partition_index": index, "broker_ids": brokers} for index, brokers in places]


@every_version(ApiKey.CREATE_TOPICS)
def test_topics_are_created(version: int, both: Both, name: Names) -> None:
    plain, defaults, settings, placed = name(), name(), name(), name()
    request = create(
        topic(plain, 3),
        topic(defaults, -1, replication_factor=-1),
        topic(settings, configs=configs(retention_ms="1234", cleanup_policy="compact,delete")),
        topic(placed, -1, replication_factor=-1, assignments=assigned((0, [0]), (1, [0]))),
    )
    both.ask(ApiKey.CREATE_TOPICS, version, {**request, "validate_only": True}, case="only validated")
    both.ask(ApiKey.CREATE_TOPICS, version, request)
    both.wait_for_topics([plain, defaults, settings, placed])
    both.ask(ApiKey.CREATE_TOPICS, version, request, case="again")


REFUSED: dict[str, dict[str, Any]] = {
    "no partitions": {"num_partitions": 0},
    "negative partitions": {"num_partitions": -2},
    "no replicas": {"replication_factor": 0},
    "negative replicas": {"replication_factor": -3},
    "too many replicas": {"replication_factor": 2},
    "unknown setting": {"configs": configs(no_such_setting="1")},
    "bad value": {"configs": configs(retention_ms="soon")},
    "value out of range": {"configs": configs(segment_bytes="-5")},
    "unknown policy": {"configs": configs(cleanup_policy="burn")},
    "null value": {"configs": configs(retention_ms=None)},
    "setting twice": {"configs": [*configs(retention_ms="1"), *configs(retention_ms="2")]},
    "unknown broker": {"num_partitions": -1, "replication_factor": -1, "assignments": assigned((0, [7]))},
    "broker twice": {"num_partitions": -1, "replication_factor": -1, "assignments": assigned((0, [0, 0]))},
    "missing partition": {
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": assigned((0, [0]), (2, [0])),
    },
    "partition twice": {"num_partitions": -1, "replication_factor": -1, "assignments": assigned((0, [0]), (0, [0]))},
    "no broker assigned": {"num_partitions": -1, "replication_factor": -1, "assignments": assigned((0, []))},
    "assignments and counts": {"assignments": assigned((0, [0]))},
    "local retention over retention": {"configs": configs(local_retention_ms="10", retention_ms="5")},
    "compression level": {"configs": configs(compression_gzip_level="99")},
    "remote storage": {"configs": configs(remote_storage_enable="true")},
}


@every_version(ApiKey.CREATE_TOPICS)
def test_invalid_topics_are_refused(version: int, both: Both, name: Names) -> None:
    topics = {why: topic(name(), **fields) for why, fields in REFUSED.items()}
    for why, refused in topics.items():
        both.ask(ApiKey.CREATE_TOPICS, version, create(refused, validate_only=True), case=f"only validated: {why}")
    both.ask(ApiKey.CREATE_TOPICS, version, create(*topics.values()), case=", ".join(topics))


LARGE: dict[str, list[dict[str, Any]]] = {
    "one topic of 9,999": [{"num_partitions": 9_999}],
    "one topic of 10,000": [{"num_partitions": 10_000}],
    "one topic of 10,001": [{"num_partitions": 10_001}],
    "two topics of 5,001": [{"num_partitions": 5_001}] * 2,
    "one of two invalid": [{"num_partitions": 5_001}, {"num_partitions": 5_001, "replication_factor": 7}],
    "5,001 topics of 1": [{"num_partitions": 1}] * 5_001,
    "11,000 invalid topics": [{"num_partitions": -5}] * 11_000,
}


@pytest.mark.parametrize("case", LARGE)
def test_a_request_may_create_a_limited_number_of_partitions(case: str, both: Both, name: Names) -> None:
    topics = [topic(name(), **fields) for fields in LARGE[case]]
    both.ask(ApiKey.CREATE_TOPICS, 7, create(*topics, validate_only=True), case=case)


@every_version(ApiKey.CREATE_TOPICS)
def test_invalid_topic_names(version: int, both: Both, name: Names) -> None:
    invalid = ["", ".", "..", "a b", "ä", "a/b", "x" * 250]
    both.ask(ApiKey.CREATE_TOPICS, version, create(*(topic(item) for item in invalid)))
    both.ask(ApiKey.CREATE_TOPICS, version, create(topic("x" * 249), validate_only=True), case="longest")
    twice = name()
    both.ask(ApiKey.CREATE_TOPICS, version, create(topic(twice), topic(twice, 2), topic("ok"), validate_only=True))
    dotted = both.create(name() + ".a_b")
    both.ask(ApiKey.CREATE_TOPICS, version, create(topic(dotted.replace(".", "_"))), case="collision")
    both.ask(ApiKey.CREATE_TOPICS, version, create(), case="no topic")
    both.ask(ApiKey.CREATE_TOPICS, version, create(topic("__transaction_state"), validate_only=True), case="internal")


@every_version(ApiKey.DELETE_TOPICS)
def test_topics_are_deleted(version: int, both: Both, name: Names) -> None:
    first, second, third = (both.create(name()) for _ in range(3))

    def by_name(*names: str) -> dict[str, Any]:
        return {
            "topic_names": names,
            "topics": [{"name": name, "topic_id": None} for name in names],
            "timeout": 30_000,
        }

    both.ask(ApiKey.DELETE_TOPICS, version, by_name(first, "no-such-topic", ""))
    both.ask(ApiKey.DELETE_TOPICS, version, by_name(first), case="again")
    both.ask(ApiKey.DELETE_TOPICS, version, by_name(second, second), case="twice")
    both.ask(ApiKey.DELETE_TOPICS, version, by_name(), case="none")
    if version < 6:
        return

    def topics(side: Side, *identities: tuple[str | None, uuid.UUID | None]) -> dict[str, Any]:
        return {"topics": [{"name": each, "topic_id": topic_id} for each, topic_id in identities], "timeout": 30_000}

    both.ask(
        ApiKey.DELETE_TOPICS,
        version,
        lambda side: topics(side, (None, UNKNOWN_ID), (None, None), (third, side.topic_id(third))),
        case="bad identities",
    )
    both.ask(
        ApiKey.DELETE_TOPICS,
        version,
        lambda side: topics(side, (None, side.topic_id(third)), (third, None)),
        case="by id and by name",
    )
    both.ask(
        ApiKey.DELETE_TOPICS,
        version,
        lambda side: topics(side, (None, side.topic_id(third)), (None, side.topic_id(third))),
        case="id twice",
    )
    both.ask(ApiKey.DELETE_TOPICS, version, lambda side: topics(side, (None, side.topic_id(third))), case="by id")


@every_version(ApiKey.CREATE_PARTITIONS)
def test_partitions_are_added(version: int, both: Both, name: Names) -> None:
    grown = both.create(name(), 2)

    def grow(*topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False) -> dict[str, Any]:
        return {
            "topics": [
                {
                    "name": each,
                    "count": count,
                    "assignments": None if places is None else [{"broker_ids": brokers} for brokers in places],
                }
                for each, count, places in topics
            ],
            "timeout": 30_000,
            "validate_only": validate_only,
        }

    wanted: tuple[tuple[str, int, list[list[int]] | None], ...] = (
        ("same", 2, None),
        ("fewer", 1, None),
        ("none", 0, None),
        ("negative", -1, None),
        ("too many assignments", 3, [[0], [0]]),
        ("too few assignments", 4, [[0]]),
        ("no assignments", 3, []),
        ("unknown broker", 3, [[9]]),
        ("broker twice", 3, [[0, 0]]),
        ("no broker", 3, [[]]),
        ("too many replicas", 3, [[0, 1]]),
    )
    for case, count, places in wanted:
        both.ask(ApiKey.CREATE_PARTITIONS, version, grow((grown, count, places)), case=case)
    both.ask(ApiKey.CREATE_PARTITIONS, version, grow(("no-such-topic", 3, None), ("", 3, None)), case="unknown")
    both.ask(ApiKey.CREATE_PARTITIONS, version, grow((grown, 3, None), (grown, 4, None)), case="twice")
    both.ask(ApiKey.CREATE_PARTITIONS, version, grow((grown, 9, None), validate_only=True), case="only validated")
    both.ask(ApiKey.CREATE_PARTITIONS, version, grow((grown, 3, None)))
    both.ask(ApiKey.CREATE_PARTITIONS, version, grow((grown, 5, [[0], [0]])), case="placed")
    both.ask(ApiKey.CREATE_PARTITIONS, version, grow(), case="nothing")
