"""Builds the reply of every API for a request that failed as a whole.

The error code is in the reply's top-level field if the API defines one; otherwise it is in every requested topic, group
or other item, because clients look for it only there.
"""

from typing import Any

from headrace.errors import KafkaError
from headrace.server.context import RequestContext
from headrace.server.frames import InvalidRequestError
from headrace.wire.apis import ApiKey, schema
from headrace.wire.encoder import Fields
from headrace.wire.items import Items, made_of


def error_reply(context: RequestContext, request: Any, error: KafkaError) -> Fields:
    """Return the reply to `request` with `error`.

    Raises InvalidRequestError if the API has no field for the error: the connection must be closed, as in Kafka.
    """
    fields: dict[str, Any] = {"error_code": error.code, "error_message": error.message}
    items = _ITEMS.get(context.api_key)
    if items is not None:
        fields |= items(request, fields)
    try:
        # check only one item of every array: it may have a hundred thousand
        plain = {name: value[:1] if isinstance(value, Items | list) else value for name, value in fields.items()}
        schema(context.api_key, context.api_version).encode_response(bytearray(), plain)
    except TypeError:
        raise InvalidRequestError(
            f"{ApiKey(context.api_key).name} of client id {context.client_id!r} failed: {error}"
        ) from error
    return fields


def _find_coordinator(request: Any, error: Fields) -> Fields:
    nowhere = {"node_id": -1, "host": "", "port": -1}
    keys = getattr(request, "coordinator_keys", ())
    return {**nowhere, "coordinators": made_of(keys, lambda key: {"key": key, **nowhere, **error})}


def _join_group(request: Any, _: Fields) -> Fields:
    return {"generation_id": -1, "protocol_name": "", "leader": "", "member_id": request.member_id, "members": []}


def _named_groups(request: Any, error: Fields) -> Fields:
    nothing = {"group_state": "", "protocol_type": "", "protocol_data": "", "members": [], **error}
    names = getattr(request, "groups_names", getattr(request, "groups", ()))
    described = made_of(names, lambda name: {"group_id": name, **nothing})
    return {"results": described, "groups": described}


def _committed(request: Any, error: Fields) -> Fields:
    def topic_of(topic: Any) -> Fields:
        return {
            "name": getattr(topic, "name", ""),
            "topic_id": getattr(topic, "topic_id", None),
            "partitions": made_of(
                topic.partitions, lambda partition: {"partition_index": partition.partition_index, **error}
            ),
        }

    return {"topics": made_of(request.topics, topic_of)}


def _fetched_offsets(request: Any, error: Fields) -> Fields:
    groups = getattr(request, "groups", ())
    return {"topics": (), "groups": made_of(groups, lambda group: {"group_id": group.group_id, "topics": (), **error})}


def _new_topics(request: Any, error: Fields) -> Fields:
    none = {"topic_id": None, "num_partitions": -1, "replication_factor": -1, "configs": ()}
    return {"topics": made_of(request.topics, lambda topic: {"name": topic.name, **none, **error})}


def _deleted_topics(request: Any, error: Fields) -> Fields:
    if hasattr(request, "topic_names"):
        return {"responses": made_of(request.topic_names, lambda name: {"name": name, "topic_id": None, **error})}
    return {
        "responses": made_of(request.topics, lambda topic: {"name": topic.name, "topic_id": topic.topic_id, **error})
    }


def _grown_topics(request: Any, error: Fields) -> Fields:
    return {"results": made_of(request.topics, lambda topic: {"name": topic.name, **error})}


def _altered_resources(request: Any, error: Fields) -> Fields:
    def altered(resource: Any) -> Fields:
        return {"resource_type": resource.resource_type, "resource_name": resource.resource_name, **error}

    return {"responses": made_of(request.resources, altered)}


def _deleted_records(request: Any, error: Fields) -> Fields:
    def deleted(partition: Any) -> Fields:
        return {"partition_index": partition.partition_index, "low_watermark": -1, **error}

    return {
        "topics": made_of(
            request.topics, lambda topic: {"name": topic.name, "partitions": made_of(topic.partitions, deleted)}
        )
    }


def _empty(*names: str) -> Any:
    return lambda _request, _error: dict.fromkeys(names, ())


_ITEMS = {
    int(ApiKey.FIND_COORDINATOR): _find_coordinator,
    int(ApiKey.JOIN_GROUP): _join_group,
    int(ApiKey.CREATE_TOPICS): _new_topics,
    int(ApiKey.DELETE_TOPICS): _deleted_topics,
    int(ApiKey.CREATE_PARTITIONS): _grown_topics,
    int(ApiKey.INCREMENTAL_ALTER_CONFIGS): _altered_resources,
    int(ApiKey.ALTER_CONFIGS): _altered_resources,
    int(ApiKey.DELETE_RECORDS): _deleted_records,
    int(ApiKey.SYNC_GROUP): lambda _request, _error: {"assignment": b""},
    int(ApiKey.DESCRIBE_GROUPS): _named_groups,
    int(ApiKey.DELETE_GROUPS): _named_groups,
    int(ApiKey.LEAVE_GROUP): _empty("members"),
    int(ApiKey.LIST_GROUPS): _empty("groups"),
    int(ApiKey.OFFSET_COMMIT): _committed,
    int(ApiKey.OFFSET_FETCH): _fetched_offsets,
    int(ApiKey.OFFSET_DELETE): _empty("topics"),
    int(ApiKey.INIT_PRODUCER_ID): lambda _request, _error: {"producer_id": -1, "producer_epoch": -1},
    int(ApiKey.FETCH): _empty("responses"),
    int(ApiKey.DESCRIBE_LOG_DIRS): _empty("results"),
    int(ApiKey.DESCRIBE_CLUSTER): lambda _request, _error: {"cluster_id": "", "brokers": ()},
    int(ApiKey.ALTER_PARTITION_REASSIGNMENTS): _empty("responses"),
    int(ApiKey.LIST_PARTITION_REASSIGNMENTS): _empty("topics"),
    int(ApiKey.ELECT_LEADERS): _empty("replica_election_results"),
    int(ApiKey.UPDATE_FEATURES): _empty("results"),
    int(ApiKey.ALTER_PARTITION): _empty("topics"),
    int(ApiKey.ALLOCATE_PRODUCER_IDS): lambda _request, _error: {"producer_id_start": -1, "producer_id_len": 0},
    int(ApiKey.LEADER_AND_ISR): _empty("topics"),
    int(ApiKey.STOP_REPLICA): _empty("partition_errors"),
    int(ApiKey.CONTROLLED_SHUTDOWN): _empty("remaining_partitions"),
    int(ApiKey.LIST_CONFIG_RESOURCES): _empty("config_resources"),
}
