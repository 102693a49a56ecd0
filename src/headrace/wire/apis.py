"""The API table: which APIs and versions the schemas know, and how each version is read and written.

Schemas are kio's, generated from Kafka's own definitions. A schema is imported when the first request of its version
arrives: importing all of them would cost a second and 100 MB at start-up.
"""

import sys
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

if "hypothesis" not in sys.modules:
    # kio registers strategies with Hypothesis wherever that is installed, at the price of 0.5 s and 15 MB.
    # A name that is None in sys.modules cannot be imported: kio then goes on without.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    import kio.static.primitive  # noqa: F401  (the module that looks for Hypothesis)

    del sys.modules["hypothesis"]

from pkgutil import resolve_name

from kio._kio_native import entity_reader
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from headrace.types import Buffer, Request
from headrace.wire.encoder import Encoder, compile_encoder

ApiKey = IntEnum("ApiKey", {name.upper(): key for key, name in api_key_map.items()})  # type: ignore[misc]
"""The APIs by the schema's names, e.g. `ApiKey.LIST_OFFSETS`."""


class VersionRange(NamedTuple):
    """Lowest and highest version, both inclusive."""

    lowest: int
    highest: int


class Schema(NamedTuple):
    """How one version of one API is read and written."""

    read_request: Callable[[Buffer, int], tuple[Request, int]]
    encode_response: Encoder
    has_flexible_request_header: bool
    has_flexible_response_header: bool


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
        entity_reader(request),
        compile_encoder(response),
        has_flexible_request_header=request.__header_schema__.__version__ == 2,
        has_flexible_response_header=response.__header_schema__.__version__ == 1,
    )


@cache
def request_encoder(api_key: int, version: int) -> Encoder:
    """Writes a request body, for tests and for talking to other brokers."""
    return compile_encoder(_load(api_key, version, EntityType.request))


@cache
def response_reader(api_key: int, version: int) -> Callable[[Buffer, int], tuple[Any, int]]:
    """Reads a response body, for tests and for talking to other brokers."""
    return entity_reader(_load(api_key, version, EntityType.response))


def _load(api_key: int, version: int, kind: EntityType) -> Any:
    return resolve_name(schema_name_map[api_key_map[api_key]][version][kind])  # type: ignore[index]
