"""The API table: the APIs and versions that the schemas define, with their readers and writers.

The schemas are kio's, generated from Kafka's own definitions, and those of `controls`. A schema is imported when the
first request of its version arrives: importing all of them would take a second and 100 MB at start-up.
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
from headrace.wire.controls.step_reader import StepReader, compile_step_reader
from headrace.wire.encoder import Encoder, StepEncoder, compile_encoder, compile_step_encoder, unwrap
from headrace.wire.strict_fields import StrictReader, compile_strict


class ApiKey(IntEnum):
    """API keys, with the names of the schemas."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    LEADER_AND_ISR = 4
    STOP_REPLICA = 5
    UPDATE_METADATA = 6
    CONTROLLED_SHUTDOWN = 7
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
"""Limits other than MAX_ENTRIES. A Produce request is decoded in one go, because it is mostly records. Kafka's producer
sends at most 1 MB in one request by default: batches of 10,000 partitions would have 43 bytes each for records."""

_CONTROLS: Final = {
    ApiKey.LEADER_AND_ISR.value: (7, "leader_and_isr:LeaderAndIsr"),
    ApiKey.STOP_REPLICA.value: (4, "stop_replica:StopReplica"),
    ApiKey.UPDATE_METADATA.value: (8, "update_metadata:UpdateMetadata"),
    ApiKey.CONTROLLED_SHUTDOWN.value: (3, "controlled_shutdown:ControlledShutdown"),
}
"""The version and the schemas of the APIs that kio lacks."""
_UNLIMITED: Final = frozenset({ApiKey.LEADER_AND_ISR.value, ApiKey.STOP_REPLICA.value, ApiKey.UPDATE_METADATA.value})
"""APIs without a limit on array items: a controller sends the states of all partitions in one request."""


class VersionRange(NamedTuple):
    """The lowest and the highest version, both inclusive."""

    lowest: int
    highest: int


class Schema(NamedTuple):
    """The readers and writers for one version of an API."""

    check_request: Callable[[Buffer, int], int]
    """See `compile_bounds`; must be called before `decode_request`."""
    strict_request: StrictReader | None
    """See `compile_strict`; None for versions without tagged fields."""
    decode_request: Callable[[Buffer, int], tuple[Request, int]]
    read_in_steps: StepReader | None
    """Checks and decodes a large request without unknown tagged fields; None for APIs with a limit on array items."""
    encode_response: Encoder
    encode_in_steps: StepEncoder
    has_flexible_request_header: bool
    has_flexible_response_header: bool

    def read_request(self, data: Buffer, position: int) -> tuple[Request, int]:
        """Check and decode a request. Raises ValueError, or kio's exceptions, if it is malformed."""
        self.check_request(data, position)
        return self.decode_request(data, position)


@cache
def versions(api_key: int) -> VersionRange | None:
    """Return the versions of `api_key` that the schemas define; None for an unknown API."""
    if api_key in _CONTROLS:
        version, _ = _CONTROLS[api_key]
        return VersionRange(version, version)
    name = api_key_map.get(api_key)
    if name is None:
        return None
    known = schema_name_map[name].keys()
    return VersionRange(min(known), max(known))


@cache
def schema(api_key: int, version: int) -> Schema:
    """Return the schema of a version within `versions(api_key)`."""
    request = schema_class(api_key, version, EntityType.request)
    response = schema_class(api_key, version, EntityType.response)
    return Schema(
        compile_bounds(request, max_entries(api_key)),
        compile_strict(request, max_entries(api_key)) if request.__flexible__ else None,
        entity_reader(request),
        compile_step_reader(request) if api_key in _UNLIMITED else None,
        compile_encoder(response),
        compile_step_encoder(response),
        has_flexible_request_header=request.__header_schema__.__version__ == 2,
        has_flexible_response_header=response.__header_schema__.__version__ == 1,
    )


def max_entries(api_key: int) -> int:
    """Return the maximum number of items in all arrays of one request that is decoded in one go."""
    return _MAX_ENTRIES.get(api_key, MAX_ENTRIES)


@cache
def request_encoder(api_key: int, version: int) -> Encoder:
    """Return the encoder of a request body, for tests and for requests to other brokers."""
    return compile_encoder(schema_class(api_key, version, EntityType.request))


@cache
def item_encoder(api_key: int, version: int, *path: str) -> Encoder:
    """Return the encoder of one item of the array at `path` in a reply; `EncodedItems` takes its output."""
    entity = schema_class(api_key, version, EntityType.response)
    for name in path:
        (entity,) = (unwrap(field.type)[0] for field in fields(entity) if field.name == name)
    return compile_encoder(entity)


@cache
def response_reader(api_key: int, version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    """Return the reader of a reply body, for tests and for requests to other brokers."""
    return entity_reader(schema_class(api_key, version, EntityType.response))


@cache
def schema_class(api_key: int, version: int, kind: EntityType) -> Any:
    """Return the class for one version of a request or response."""
    if api_key in _CONTROLS:
        known, name = _CONTROLS[api_key]
        assert version == known, f"no version {version} of {ApiKey(api_key).name}"
        return resolve_name(f"headrace.wire.controls.{name}{kind.name.capitalize()}")
    return resolve_name(schema_name_map[api_key_map[api_key]][version][kind])  # type: ignore[index]
