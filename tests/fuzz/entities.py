"""Hypothesis strategies for requests: any values allowed by the schema of an API version."""

import dataclasses
import types
import typing
import uuid
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st
from kio.static.constants import EntityType

from headrace.wire.apis import ApiKey, schema_class
from headrace.wire.records import RecordData, build_batch

TOPIC: Final = "fuzzed"
"""An existing topic with two partitions."""
GROUP: Final = "fuzzers"

_BATCH: Final = build_batch([RecordData(b"key", b"value", 1_700_000_000_000)])


def _integers(bits: int) -> st.SearchStrategy[int]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.sampled_from([0, 1, -1, -2, 2, 5, low, high]) | st.integers(low, high)


_STRINGS: Final = st.sampled_from(
    [TOPIC, GROUP, "", ".", "__consumer_offsets", "ä b", "x" * 300, "0", "range", "consumer"]
) | st.text(max_size=12)
_MILLISECONDS: Final = st.sampled_from([0, 1, 20, -1, 1_000])
_RECORDS: Final = (
    st.just(_BATCH)
    | st.binary(max_size=200)
    | st.tuples(st.integers(0, len(_BATCH) - 1), st.integers(0, 255)).map(
        lambda change: _BATCH[: change[0]] + bytes((change[1],)) + _BATCH[change[0] + 1 :]
    )
)
_SCALARS: Final[dict[str, st.SearchStrategy[Any]]] = {
    "int8": _integers(8),
    "int16": _integers(16),
    # mostly partitions and counts; other tests cover huge counts
    "int32": st.sampled_from([0, 1, -1, -2, 2, 50, -(2**31), 2**31 - 1]) | st.integers(-3, 300),
    "int64": _integers(64),
    "uint16": st.integers(0, 65_535),
    "float64": st.floats(allow_nan=True),
    "string": _STRINGS,
    "bytes": st.binary(max_size=60),
    "records": _RECORDS,
    "bool": st.booleans(),
    "uuid": st.none() | st.uuids() | st.just(uuid.UUID(int=1)),
    "timedelta_i32": _MILLISECONDS,
    "timedelta_i64": _MILLISECONDS,
}


@cache
def requests(api_key: ApiKey, version: int) -> st.SearchStrategy[dict[str, Any]]:
    return _fields(schema_class(api_key, version, EntityType.request))


def _fields(entity: type[Any]) -> st.SearchStrategy[dict[str, Any]]:
    hints = typing.get_type_hints(entity)
    return st.fixed_dictionaries(
        {field.name: _value(hints[field.name], field.metadata) for field in dataclasses.fields(entity)}
    )


def _value(hint: Any, metadata: typing.Mapping[str, Any]) -> st.SearchStrategy[Any]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        some = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        return st.none() | _value(some[0], metadata)
    if typing.get_origin(hint) is tuple:
        return st.lists(_value(typing.get_args(hint)[0], metadata), max_size=3).map(tuple)
    if "kafka_type" in metadata:
        return _SCALARS[metadata["kafka_type"]]
    return _fields(hint)
