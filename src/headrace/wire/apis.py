"""The API table: which APIs and versions the schemas know, and how each version is read and written.

Schemas are kio's, generated from Kafka's own definitions. A schema is imported when the first request of its version
arrives: importing all of them would cost a second and 100 MB at start-up.
"""

from collections.abc import Callable
from dataclasses import fields
from enum import IntEnum
from functools import cache
from pkgutil import resolve_name
from typing import Any, Final, NamedTuple

from kio._kio_native import entity_reader
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from headrace.types import Buffer, Request
from headrace.wire.bounds import MAX_ENTRIES, compile_bounds
from headrace.wire.encoder import Encoder, StepEncoder, compile_encoder, compile_step_encoder, unwrap
from headrace.wire.strict_fields import StrictReader, compile_strict


class ApiKey(IntEnum):
    """The APIs by the names of their schemas."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    VOTE = 52
    BEGIN_QUORUM_EPOCH = 53
    END_QUORUM_EPOCH = 54
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    ENVELOPE = 58
    FETCH_SNAPSHOT = 59
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    BROKER_REGISTRATION = 62
    BROKER_HEARTBEAT = 63
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    ALLOCATE_PRODUCER_IDS = 67
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    CONTROLLER_REGISTRATION = 70
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    ASSIGN_REPLICAS_TO_DIRS = 73
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UPDATE_RAFT_VOTER = 82
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    STREAMS_GROUP_HEARTBEAT = 88
    STREAMS_GROUP_DESCRIBE = 89
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


_MAX_ENTRIES: Final = {ApiKey.PRODUCE.value: 10_000}
"""Requests with a lower limit: a frame of Produce is decoded at once, as it mostly contains records. No producer comes
near: the batches of so many partitions do not fit the 1 MB that a Kafka producer sends in one request."""


class VersionRange(NamedTuple):
    """Lowest and highest version, both inclusive."""

    lowest: int
    highest: int


class Schema(NamedTuple):
    """How one version of one API is read and written."""

    check_request: Callable[[Buffer, int], int]
    """See `compile_bounds`; must come before `decode_request`."""
    strict_request: StrictReader | None
    """See `compile_strict`; None where strings and tagged fields need no such care."""
    decode_request: Callable[[Buffer, int], tuple[Request, int]]
    encode_response: Encoder
    encode_in_steps: StepEncoder
    has_flexible_request_header: bool
    has_flexible_response_header: bool

    def read_request(self, data: Buffer, position: int) -> tuple[Request, int]:
        """Raises ValueError, or what kio raises, for bytes that are no such request."""
        self.check_request(data, position)
        return self.decode_request(data, position)


@cache
def versions(api_key: int) -> VersionRange | None:
    """The versions of `api_key` that the schemas have; None where there is no such API."""
    name = api_key_map.get(api_key)
    if name is None:
        return None
    known = schema_name_map[name].keys()
    return VersionRange(min(known), max(known))


@cache
def schema(api_key: int, version: int) -> Schema:
    """The schema of a version within `versions(api_key)`."""
    request = _load(api_key, version, EntityType.request)
    response = _load(api_key, version, EntityType.response)
    return Schema(
        compile_bounds(request, max_entries(api_key)),
        compile_strict(request, max_entries(api_key)) if request.__flexible__ else None,
        entity_reader(request),
        compile_encoder(response),
        compile_step_encoder(response),
        has_flexible_request_header=request.__header_schema__.__version__ == 2,
        has_flexible_response_header=response.__header_schema__.__version__ == 1,
    )


def max_entries(api_key: int) -> int:
    """How many items the arrays of one request may have together."""
    return _MAX_ENTRIES.get(api_key, MAX_ENTRIES)


@cache
def request_encoder(api_key: int, version: int) -> Encoder:
    """Writes a request body, for tests and for talking to other brokers."""
    return compile_encoder(_load(api_key, version, EntityType.request))


@cache
def item_encoder(api_key: int, version: int, *path: str) -> Encoder:
    """Writes one item of an array in a response, or of an array in its items: what `EncodedItems` are made of."""
    entity = _load(api_key, version, EntityType.response)
    for name in path:
        (entity,) = (unwrap(field.type)[0] for field in fields(entity) if field.name == name)
    return compile_encoder(entity)


@cache
def response_reader(api_key: int, version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    """Reads a response body, for tests and for talking to other brokers."""
    return entity_reader(_load(api_key, version, EntityType.response))


def _load(api_key: int, version: int, kind: EntityType) -> Any:
    return resolve_name(schema_name_map[api_key_map[api_key]][version][kind])  # type: ignore[index]
