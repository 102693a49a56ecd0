"""ApiVersions, Metadata, DescribeCluster and DescribeTopicPartitions."""

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from headrace.wire.apis import ApiKey
from tests.parity.both import UNKNOWN_ID, Both, Names, Side, every_version


@every_version(ApiKey.API_VERSIONS)
def test_supported_apis_have_the_same_versions(version: int, both: Both) -> None:
    software = {"client_software_name": "parity", "client_software_version": "1.0"}
    both.send(ApiKey.API_VERSIONS, version, software)
    kafka, headrace = (side.receive(ApiKey.API_VERSIONS, version, "parity") for side in both.sides)
    supported = {item["api_key"] for item in headrace["api_keys"]}

    def shared(answer: dict[str, Any]) -> dict[str, Any]:
        named = [item for item in answer["api_keys"] if item["api_key"] in supported]
        return {"error_code": answer["error_code"], "api_keys": named}

    both.compare(ApiKey.API_VERSIONS, f"v{version}", shared(kafka), shared(headrace))


@every_version(ApiKey.API_VERSIONS, since=3)
def test_client_software_names_and_versions(version: int, both: Both) -> None:
    for software, release in (("", "1"), ("a b", "1"), ("-a", "1"), ("a", ""), ("a", "1 2"), ("a.b-c", "1.2-x")):
        request = {"client_software_name": software, "client_software_version": release}
        both.send(ApiKey.API_VERSIONS, version, request)
        codes = [side.receive(ApiKey.API_VERSIONS, version, "parity")["error_code"] for side in both.sides]
        both.compare(ApiKey.API_VERSIONS, f"v{version} {software!r} {release!r}", *codes)


def metadata(topics: list[tuple[str | None, uuid.UUID | None]] | None, **fields: Any) -> dict[str, Any]:
    return {
        "topics": None if topics is None else [{"name": name, "topic_id": topic_id} for name, topic_id in topics],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
        **fields,
    }


def only(*topics: str) -> Callable[[Any], Any]:
    """Select an answer without the topics of other tests."""

    def take(answer: Any) -> Any:
        if isinstance(answer, str):
            return answer
        return {**answer, "topics": [item for item in answer["topics"] if item["name"] in topics]}

    return take


@every_version(ApiKey.METADATA)
def test_metadata(version: int, both: Both, name: Names) -> None:
    one, two = both.create(name()), both.create(name(), 3)
    both.ask(ApiKey.METADATA, version, metadata([(one, None), (two, None)]))
    both.ask(ApiKey.METADATA, version, metadata([(two, None), (two, None)]), case="twice")
    both.send(ApiKey.METADATA, version, metadata(None if version else []))
    both.receive(ApiKey.METADATA, version, case="all", only=only(one, two))
    if version >= 1:
        both.ask(ApiKey.METADATA, version, metadata([]), case="none")
    operations = {"include_cluster_authorized_operations": True, "include_topic_authorized_operations": True}
    both.ask(ApiKey.METADATA, version, metadata([(one, None)], **operations), case="with operations")


@every_version(ApiKey.METADATA, since=4)
def test_metadata_of_unknown_topics(version: int, both: Both) -> None:
    for unknown in ("no-such-topic", "", ".", "a b", "x" * 250, "__consumer_offset"):
        both.ask(ApiKey.METADATA, version, metadata([(unknown, None)]), case=repr(unknown))


@every_version(ApiKey.METADATA, since=10)
def test_metadata_by_topic_id(version: int, both: Both, name: Names) -> None:
    known = both.create(name(), 2)
    two = both.create(name())

    def ask(case: str, topics: Callable[[Side], list[tuple[str | None, uuid.UUID | None]]]) -> None:
        both.ask(ApiKey.METADATA, version, lambda side: metadata(topics(side)), case=case)

    ask("by id", lambda side: [(None, side.topic_id(known))])
    ask("id and name", lambda side: [(known, side.topic_id(known))])
    ask("id and another name", lambda side: [("another", side.topic_id(known))])
    ask("unknown id", lambda side: [(None, UNKNOWN_ID)])
    ask("neither", lambda side: [(None, None)])
    ask("one by id and one by name", lambda side: [(None, side.topic_id(known)), (two, None)])
    ask("known and unknown id", lambda side: [(None, side.topic_id(known)), (None, UNKNOWN_ID)])


@every_version(ApiKey.METADATA)
def test_metadata_creates_topics_if_allowed(version: int, both: Both, name: Names) -> None:
    wanted = name()
    message = metadata([(wanted, None), ("not valid", None)], allow_auto_topic_creation=True)
    answers = [side.ask(ApiKey.METADATA, version, message, "parity") for side in both.sides]
    # Kafka's first answer is that the topic is unknown; Headrace returns it at once
    refused = [[item for item in answer["topics"] if item["name"] == "not valid"] for answer in answers]
    both.compare(ApiKey.METADATA, f"v{version}", *refused)
    both.wait_for_topics([wanted])
    both.ask(ApiKey.METADATA, version, metadata([(wanted, None)]), case="created")


@every_version(ApiKey.DESCRIBE_CLUSTER)
def test_describe_cluster(version: int, both: Both) -> None:
    for operations, endpoint_type in itertools.product((False, True), (1, 2, 0, 9)):
        message = {
            "include_cluster_authorized_operations": operations,
            "endpoint_type": endpoint_type,
            "include_fenced_brokers": operations,
        }
        both.ask(ApiKey.DESCRIBE_CLUSTER, version, message, case=f"{operations} {endpoint_type}")


def test_describe_topic_partitions(both: Both, name: Names) -> None:
    first, second, third = sorted(name() for _ in range(3))
    for each, partitions in ((first, 3), (second, 2), (third, 1)):
        both.create(each, partitions)

    def ask(case: str, topics: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None) -> None:
        message = {
            "topics": [{"name": topic} for topic in topics],
            "response_partition_limit": limit,
            "cursor": None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
        }
        both.ask(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, message, case=case)

    ask("all", [third, first, second])
    ask("unknown", ["no-such-topic", first])
    ask("invalid name", ["not valid", first])
    # Not compared: an empty topic name, for which Kafka fails the whole request with an exception.
    ask("twice", [first, first])
    for limit in range(-1, 8):
        ask(f"limit {limit}", [first, second, third], limit)
        ask(f"limit {limit}, from the second topic", [first, second, third], limit, (second, 0))
        ask(f"limit {limit}, within a topic", [first, second, third], limit, (first, 2))
    ask("after the last partition", [first, second], 10, (first, 3))
    ask("far after the last partition", [first, second], 10, (first, 30))
    ask("before the first partition", [first, second], 10, (first, -1))
    ask("cursor at a topic not requested", [first, third], 10, (second, 0))
    ask("cursor after all topics", [first], 10, ("zzz", 0))
    ask("cursor at an unknown topic", ["no-such-topic", third], 10, ("no-such-topic", 0))
