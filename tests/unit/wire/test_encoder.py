"""kio's own reader can read the responses that the compiled encoders write."""

import datetime as dt
import uuid
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType
from typing import Any, get_args

import pytest
from kio.static.constants import EntityType

from headrace.errors import ErrorCode
from headrace.wire.apis import ApiKey, response_reader, schema, schema_class
from headrace.wire.encoder import Fields, MissingFieldError, compile_encoder
from tests.support.schemas import EVERY_VERSION, Versions

EVERY_KIND: Versions = [
    (ApiKey.API_VERSIONS, 0),
    (ApiKey.API_VERSIONS, 3),
    (ApiKey.CREATE_DELEGATION_TOKEN, 1),
    (ApiKey.CREATE_DELEGATION_TOKEN, 2),
    (ApiKey.CREATE_TOPICS, 5),
    (ApiKey.DESCRIBE_ACLS, 2),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 0),
    (ApiKey.DESCRIBE_CLIENT_QUOTAS, 1),
    (ApiKey.DESCRIBE_CONFIGS, 1),
    (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0),
    (ApiKey.ENVELOPE, 0),
    (ApiKey.FETCH, 7),
    (ApiKey.FETCH, 12),
    (ApiKey.FETCH_SNAPSHOT, 0),
    (ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, 0),
    (ApiKey.JOIN_GROUP, 9),
    (ApiKey.METADATA, 1),
    (ApiKey.OFFSET_FETCH, 2),
    (ApiKey.OFFSET_FETCH, 6),
    (ApiKey.PRODUCE, 8),
    (ApiKey.PRODUCE, 13),
    (ApiKey.SASL_AUTHENTICATE, 1),
    (ApiKey.SASL_AUTHENTICATE, 2),
    (ApiKey.SASL_HANDSHAKE, 0),
    (ApiKey.STREAMS_GROUP_DESCRIBE, 0),
]
"""Replies that together have fields of every type: arrays, nullable and tagged ones, with and without defaults."""
# Importing the schemas of all versions takes two seconds.
several_versions = pytest.mark.parametrize(
    "api_versions", [EVERY_KIND, pytest.param(EVERY_VERSION, marks=pytest.mark.slow)], ids=["every kind", "all"]
)

SAMPLES: dict[str, Any] = {
    "bool": True,
    "string": "a name",
    "bytes": b"\x00bytes",
    "records": b"records",
    "uuid": uuid.UUID(int=7),
    "float64": 0.5,
    "error_code": ErrorCode.corrupt_message,
}


def sample(cls: Any) -> dict[str, Any]:
    """Return a message of `cls` with a value in every field."""
    return {field.name: sample_of(field) for field in fields(cls)}


def sample_of(field: Any) -> Any:
    inner, is_array = unwrap(field.type)
    kafka_type = field.metadata.get("kafka_type")
    value = sample(inner) if kafka_type is None else SAMPLES.get(kafka_type, 42)
    return [value, value] if is_array else value


def unwrap(annotation: Any) -> tuple[Any, bool]:
    arguments = get_args(annotation)
    if NoneType in arguments:
        return unwrap(next(argument for argument in arguments if argument is not NoneType))
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return arguments[0], True
    return annotation, False


def plain(value: Any) -> Any:
    """Convert the reader's result to the encoder's plain values."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, dt.timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, dt.datetime):
        return round(value.timestamp() * 1000)
    return value


def response_class(key: int, version: int) -> Any:
    return schema_class(key, version, EntityType.response)


@several_versions
def test_full_answers_are_read_back_and_have_the_same_bytes_if_encoded_in_steps(api_versions: Versions) -> None:
    for key, version in api_versions:
        message = sample(response_class(key, version))
        out, stepwise = bytearray(), bytearray()

        schema(key, version).encode_response(out, message)
        list(schema(key, version).encode_in_steps(stepwise, message))

        read, size = response_reader(key, version)(bytes(out), 0)
        assert size == len(out), f"{key.name} v{version}"
        assert plain(read) == message, f"{key.name} v{version}"
        assert stepwise == out, f"{key.name} v{version}"


def test_fields_that_a_version_lacks_are_ignored() -> None:
    out = bytearray()
    schema(ApiKey.FIND_COORDINATOR, 0).encode_response(
        out, {"node_id": 1, "host": "h", "port": 2, "coordinators": [], "something": "else"}
    )

    read, _ = response_reader(ApiKey.FIND_COORDINATOR, 0)(bytes(out), 0)
    assert (read.node_id, read.host, read.port) == (1, "h", 2)


def test_missing_fields_get_defaults_or_cause_an_error() -> None:
    out = bytearray()
    encode = schema(ApiKey.HEARTBEAT, 4).encode_response
    encode(out, {})
    read, _ = response_reader(ApiKey.HEARTBEAT, 4)(bytes(out), 0)
    assert read.error_code is ErrorCode.none

    incomplete: Fields = {"node_id": 1, "host": "h"}
    with pytest.raises(MissingFieldError, match="port"):
        schema(ApiKey.FIND_COORDINATOR, 0).encode_response(bytearray(), incomplete)


def test_a_value_of_the_wrong_type_names_its_field() -> None:
    with pytest.raises(TypeError, match=r"FindCoordinatorResponse\.port cannot be 'x'"):
        schema(ApiKey.FIND_COORDINATOR, 0).encode_response(bytearray(), {"node_id": 1, "host": "h", "port": "x"})


@several_versions
def test_null_structures_and_arrays_are_encoded(api_versions: Versions) -> None:
    nullable = [
        (key, version)
        for key, version in api_versions
        for field in fields(response_class(key, version))
        if NoneType in get_args(field.type) and field.default is MISSING
    ]
    assert nullable
    for key, version in nullable:
        cls = response_class(key, version)
        message = sample(cls) | {
            field.name: None
            for field in fields(cls)
            if NoneType in get_args(field.type) and field.metadata.get("tag") is None
        }
        out = bytearray()
        compile_encoder(cls)(out, message)
        read, size = response_reader(key, version)(bytes(out), 0)
        assert size == len(out)
        assert plain(read) == message
