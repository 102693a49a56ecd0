"""Records as JSON lines, printed by `consume --jsonl` and read by `produce --jsonl` (docs/cli.md).

    {"topic": "t", "partition": 0, "offset": 5, "timestamp": 1763719200000, "key": "k", "value": "v",
     "headers": [["name", "value"]]}

UTF-8 bytes are strings, other bytes `{"base64": "..."}`. null is Kafka's null, distinct from the empty string.
"""

import base64
import binascii
import json
from typing import TYPE_CHECKING, Any

from headrace.cli.positions import parse_moment
from headrace.cli.record import Record, headers
from headrace.wording import is_utf8, printable, without_controls

if TYPE_CHECKING:
    from confluent_kafka import Message

_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode
ZERO_TIMESTAMP = "which librdkafka would replace with the current time; use 1 or leave it out"
_FIELDS = {"topic", "partition", "offset", "timestamp", "key", "value", "headers"}


class MalformedRecordError(ValueError):
    """An invalid line. The text gives the reason, without the line number."""


def to_json_line(message: "Message") -> bytes:
    """Format a consumed record, without a line ending."""
    kind, timestamp = message.timestamp()
    fields = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": timestamp if kind else None,
        "key": _to_json(message.key()),
        "value": _to_json(message.value()),
        "headers": [[name, _to_json(value)] for name, value in headers(message)],
    }
    return without_controls(_encode(fields)).encode()


def from_json_line(line: bytes, now_ms: int) -> Record:
    """Parse a record. Raises MalformedRecordError.

    'topic' and 'offset' are ignored; 'timestamp' is ms or a time as text.
    """
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise MalformedRecordError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise MalformedRecordError('not a JSON object; for example {"key": "k", "value": "v"}')
    unknown = fields.keys() - _FIELDS
    if unknown:
        raise MalformedRecordError(f"unknown field '{min(unknown)}'; known fields: {', '.join(sorted(_FIELDS))}")
    partition = fields.get("partition")
    if partition is not None and (not _is_int(partition) or not 0 <= partition < 2**31):
        raise MalformedRecordError(f"'partition' is {json.dumps(partition)}, not a whole number from 0 to {2**31 - 1}")
    return Record(
        key=_from_json(fields.get("key"), "key"),
        value=_from_json(fields.get("value"), "value"),
        headers=_headers(fields.get("headers")),
        partition=partition,
        timestamp_ms=_timestamp(fields.get("timestamp"), now_ms),
    )


def _to_json(data: bytes | str | None) -> object:
    if data is None or isinstance(data, str):
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _from_json(value: Any, field: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        if not is_utf8(value):
            raise MalformedRecordError(f"'{field}' contains an unpaired surrogate")
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (binascii.Error, ValueError):
            raise MalformedRecordError(f"'{field}' contains malformed base64") from None
    raise MalformedRecordError(
        f'\'{field}\' must be a string, null or {{"base64": "..."}}; write JSON inside a record as a string'
    )


def _headers(value: Any) -> list[tuple[str, bytes | None]]:
    if value is None:
        return []
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and isinstance(pair[0], str) for pair in pairs
    ):
        raise MalformedRecordError("'headers' must be a list of [name, value] pairs or an object")
    for name, _ in pairs:
        if not is_utf8(name):
            raise MalformedRecordError(f"the header name '{printable(name)}' contains an unpaired surrogate")
    return [(name, _from_json(data, f"header {name}")) for name, data in pairs]


def _timestamp(value: Any, now_ms: int) -> int | None:
    if value is None:
        return None
    if _is_int(value) and 0 <= value < 2**63:
        found = int(value)
    elif isinstance(value, str):
        try:
            found = parse_moment(value, now_ms)
        except ValueError as error:
            raise MalformedRecordError(f"'timestamp': {error}") from None
    else:
        raise MalformedRecordError(f"'timestamp' is {json.dumps(value)}, not milliseconds since 1970 or an ISO time")
    if found == 0:
        raise MalformedRecordError(f"'timestamp' is 0, {ZERO_TIMESTAMP}")
    return found


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
