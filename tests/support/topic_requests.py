"""Requests about a topic or one of its partitions, over a WireClient."""

from typing import Any

from headrace.wire.apis import ApiKey
from headrace.wire.records import RecordData, build_batch, iter_records
from tests.support.wire_client import WireClient


def new_topic(client: WireClient, name: str, partitions: int = 1, **configs: object) -> dict[str, Any]:
    """Create a topic, and return the answer for it."""
    new = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": key.replace("_", "."), "value": str(value)} for key, value in configs.items()],
    }
    answer = client.ask(ApiKey.CREATE_TOPICS, 5, {"topics": [new], "timeout": 9000, "validate_only": False})
    created: dict[str, Any] = answer["topics"][0]
    return created


def create(client: WireClient, name: str, partitions: int = 1, **configs: object) -> str:
    """Create a topic, and return the error code."""
    code: str = new_topic(client, name, partitions, **configs)["error_code"]
    return code


def produce(client: WireClient, topic: str, partition: int, *values: bytes, acks: int = 1) -> str:
    """Write one batch of records, by default one with the topic's name as its value, and return the error code."""
    batch = build_batch([RecordData(None, value, 1) for value in values or (topic.encode(),)])
    message = {
        "acks": acks,
        "timeout": 9000,
        "topic_data": [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}],
    }
    answer = client.ask(ApiKey.PRODUCE, 9, message)
    code: str = answer["responses"][0]["partition_responses"][0]["error_code"]
    return code


def fetched(client: WireClient, topic: str, partition: int, offset: int = 0) -> dict[str, Any]:
    """Fetch from a partition, and return the answer for it."""
    partition_request = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    message = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "topics": [{"topic": topic, "partitions": [partition_request]}],
        "forgotten_topics_data": [],
    }
    answer: dict[str, Any] = client.ask(ApiKey.FETCH, 12, message)["responses"][0]["partitions"][0]
    return answer


def values(client: WireClient, topic: str, partition: int = 0) -> list[bytes | None]:
    """Return the values of the partition's records, which fit into one answer."""
    answer = fetched(client, topic, partition)
    assert answer["error_code"] == "none", answer
    return [record.value for record in iter_records(answer["records"])]
