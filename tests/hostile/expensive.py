"""The most expensive request of every API: the maximum of entries in the most expensive array."""

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from headrace.wire.apis import ApiKey, request_encoder, schema, versions

MANY: Final = 99_000
"""Just below the limit on entries per request."""
MANY_BATCHES: Final = 9_900
"""Just below the limit on batches per Produce request."""

Message = dict[str, Any]
_ID: Final = UUID(int=7)
_TOPIC: Final = 2
_DOWNGRADE: Final = 3


def _names(prefix: str = "n") -> list[str]:
    return [f"{prefix}{number}" for number in range(MANY)]


def _produce(_: str) -> Message:
    data = [{"index": index, "records": None} for index in range(MANY_BATCHES)]
    return {"acks": 1, "timeout": 1000, "topic_data": [{"topic_id": _ID, "partition_data": data}]}


def _fetch(_: str) -> Message:
    entry = {"fetch_offset": 0, "log_start_offset": 0, "partition_max_bytes": 1}
    return {
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "topics": [{"topic_id": _ID, "partitions": [{**entry, "partition": index} for index in range(MANY)]}],
        "forgotten_topics_data": [],
    }


def _list_offsets(topic: str) -> Message:
    entries = [{"partition_index": index, "timestamp": -1} for index in range(MANY)]
    return {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": entries}], "timeout": 1000}


def _metadata(_: str) -> Message:
    return {
        "topics": [{"name": name, "topic_id": None} for name in _names()],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": True,
    }


def _offset_commit(_: str) -> Message:
    partition = {"committed_offset": 1, "committed_metadata": ""}
    return {
        "group_id": "expensive",
        "member_id": "",
        "topics": [{"topic_id": _ID, "partitions": [{**partition, "partition_index": index} for index in range(MANY)]}],
    }


def _offset_fetch(_: str) -> Message:
    group = {"topics": None}
    return {"groups": [{**group, "group_id": name} for name in _names()], "require_stable": True}


def _join_group(_: str) -> Message:
    return {
        "group_id": "expensive",
        "session_timeout": 10_000,
        "rebalance_timeout": 10_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": b""} for name in _names()],
    }


def _sync_group(_: str) -> Message:
    return {
        "group_id": "expensive",
        "generation_id": 1,
        "member_id": "nobody",
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": name, "assignment": b""} for name in _names()],
    }


def _create_topics(_: str) -> Message:
    return {"topics": [_new_topic(name, -5) for name in _names()], "timeout": 60_000, "validate_only": True}


def _new_topic(name: str, partitions: int) -> Message:
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }


def _delete_records(topic: str) -> Message:
    partitions = [{"partition_index": index, "offset": 0} for index in range(MANY)]
    return {"topics": [{"name": topic, "partitions": partitions}], "timeout": 1000}


def _leader_epochs(topic: str) -> Message:
    partitions = [{"partition": index, "leader_epoch": 0} for index in range(MANY)]
    return {"replica_id": -1, "topics": [{"topic": topic, "partitions": partitions}]}


def _describe_configs(topic: str) -> Message:
    # every answer contains all settings of a topic
    resources = [{"resource_type": _TOPIC, "resource_name": topic, "configuration_keys": None}] * 4000
    return {"resources": resources, "include_synonyms": True}


def _altered(configs: list[Message]) -> Message:
    resources = [{"resource_type": _TOPIC, "resource_name": name, "configs": configs} for name in _names()[: MANY // 2]]
    return {"resources": resources, "validate_only": False}


def _alter_replica_log_dirs(topic: str) -> Message:
    return {"dirs": [{"path": "/nowhere", "topics": [{"name": topic, "partitions": range(MANY)}]}]}


def _reassignments(topic: str) -> Message:
    partitions = [{"partition_index": index, "replicas": None} for index in range(MANY)]
    return {"timeout": 1000, "topics": [{"name": topic, "partitions": partitions}]}


def _consumer_heartbeat(_: str) -> Message:
    return {
        "group_id": "expensive-consumers",
        "member_id": "one",
        "member_epoch": 0,
        "rebalance_timeout": 10_000,
        "subscribed_topic_names": _names(),
        "topic_partitions": [],
    }


def _transactions(topic: str) -> Message:
    # none of them was begun
    return {"transactions": [transaction(f"t{number}", topic, [0]) for number in range(MANY // 3)]}


def transaction(name: str, topic: str, partitions: Sequence[int]) -> Message:
    """Return an entry of AddPartitionsToTxn."""
    return {
        "transactional_id": name,
        "producer_id": 1,
        "producer_epoch": 0,
        "topics": [{"name": topic, "partitions": partitions}],
    }


def _markers(topic: str) -> Message:
    return {
        "markers": [
            {
                "producer_id": 4711,
                "producer_epoch": 0,
                "transaction_result": False,
                "topics": [{"name": topic, "partition_indexes": [0] * (MANY - 2)}],
                "coordinator_epoch": 0,
            }
        ]
    }


def _transactional_offsets(topic: str) -> Message:
    partition = {"committed_offset": 1, "committed_metadata": ""}
    partitions = [{**partition, "partition_index": index} for index in range(MANY)]
    return {
        "transactional_id": "expensive",
        "group_id": "expensive",
        "producer_id": 1,
        "producer_epoch": 0,
        "generation_id_or_member_epoch": -1,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": partitions}],
    }


REQUESTS: Final[Mapping[ApiKey, Callable[[str], Message]]] = {
    ApiKey.PRODUCE: _produce,
    ApiKey.FETCH: _fetch,
    ApiKey.LIST_OFFSETS: _list_offsets,
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_COMMIT: _offset_commit,
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.FIND_COORDINATOR: lambda _: {"coordinator_keys": _names()},
    ApiKey.JOIN_GROUP: _join_group,
    ApiKey.HEARTBEAT: lambda _: {"group_id": "g" * 30_000, "generation_id": 1, "member_id": "m"},
    ApiKey.LEAVE_GROUP: lambda _: {
        "group_id": "expensive",
        "members": [{"member_id": name, "reason": "r"} for name in _names()],
    },
    ApiKey.SYNC_GROUP: _sync_group,
    ApiKey.DESCRIBE_GROUPS: lambda _: {"groups": _names(), "include_authorized_operations": True},
    ApiKey.LIST_GROUPS: lambda _: {"states_filter": _names()},
    ApiKey.API_VERSIONS: lambda _: {"client_software_name": "a" * 30_000, "client_software_version": "1"},
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: lambda _: {
        "topics": [{"name": name, "topic_id": None} for name in _names()],
        "timeout": 60_000,
    },
    ApiKey.DELETE_RECORDS: _delete_records,
    ApiKey.INIT_PRODUCER_ID: lambda _: {"transactional_id": "t" * 30_000, "transaction_timeout": 1000},
    ApiKey.ADD_PARTITIONS_TO_TXN: _transactions,
    ApiKey.ADD_OFFSETS_TO_TXN: lambda _: {
        "transactional_id": "t" * 30_000,
        "producer_id": 1,
        "producer_epoch": 0,
        "group_id": "g" * 30_000,
    },
    ApiKey.END_TXN: lambda _: {
        "transactional_id": "t" * 30_000,
        "producer_id": 1,
        "producer_epoch": 0,
        "committed": True,
    },
    ApiKey.WRITE_TXN_MARKERS: _markers,
    ApiKey.TXN_OFFSET_COMMIT: _transactional_offsets,
    ApiKey.DESCRIBE_TRANSACTIONS: lambda _: {"transactional_ids": _names()},
    ApiKey.LIST_TRANSACTIONS: lambda _: {
        "state_filters": _names()[: MANY // 2],
        "producer_id_filters": range(MANY // 2),
        "duration_filter": 1,
        "transactional_id_pattern": r"\pL" * 3300,
    },
    ApiKey.UPDATE_FEATURES: lambda _: {
        "timeout_ms": 1000,
        "feature_updates": [{"feature": name, "max_version_level": 1, "upgrade_type": _DOWNGRADE} for name in _names()],
        "validate_only": False,
    },
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _leader_epochs,
    ApiKey.DESCRIBE_CONFIGS: _describe_configs,
    ApiKey.ALTER_CONFIGS: lambda _: _altered([{"name": "retention.ms", "value": "1000"}]),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _alter_replica_log_dirs,
    ApiKey.DESCRIBE_LOG_DIRS: lambda topic: {"topics": [{"topic": topic, "partitions": range(MANY)}]},
    ApiKey.CREATE_PARTITIONS: lambda _: {
        "topics": [{"name": name, "count": 5, "assignments": None} for name in _names()],
        "timeout": 1000,
        "validate_only": False,
    },
    ApiKey.DELETE_GROUPS: lambda _: {"groups_names": _names()},
    ApiKey.ELECT_LEADERS: lambda topic: {
        "election_type": 0,
        "topic_partitions": [{"topic": topic, "partitions": range(MANY)}],
        "timeout": 1000,
    },
    ApiKey.INCREMENTAL_ALTER_CONFIGS: lambda _: _altered(
        [{"name": "retention.ms", "config_operation": 0, "value": "1000"}]
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: lambda topic: {
        "timeout": 1000,
        "topics": [{"name": topic, "partition_indexes": range(MANY)}],
    },
    ApiKey.OFFSET_DELETE: lambda topic: {
        "group_id": "expensive",
        "topics": [{"name": topic, "partitions": [{"partition_index": index} for index in range(MANY)]}],
    },
    ApiKey.DESCRIBE_CLUSTER: lambda _: {"include_cluster_authorized_operations": True, "include_fenced_brokers": False},
    ApiKey.DESCRIBE_PRODUCERS: lambda topic: {"topics": [{"name": topic, "partition_indexes": range(MANY)}]},
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _consumer_heartbeat,
    ApiKey.CONSUMER_GROUP_DESCRIBE: lambda _: {"group_ids": _names(), "include_authorized_operations": True},
    ApiKey.LIST_CONFIG_RESOURCES: lambda _: {"resource_types": [_TOPIC] * MANY},
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: lambda _: {
        "topics": [{"name": name} for name in _names()],
        "response_partition_limit": 2000,
    },
}


def frame(api: ApiKey, message: Mapping[str, Any], version: int | None = None) -> bytes:
    """Encode a request, by default of the newest version, with its length prefix."""
    if version is None:
        supported = versions(api)
        assert supported is not None
        version = supported.highest
    body = bytearray(struct.pack(">ihhih", 0, api, version, 1, 7) + b"hostile")
    if schema(api, version).has_flexible_request_header:
        body.append(0)
    request_encoder(api, version)(body, message)
    struct.pack_into(">i", body, 0, len(body) - 4)
    return bytes(body)
