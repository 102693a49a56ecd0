"""Answers without what must differ between two brokers: identities, addresses, texts, clocks, order of hash maps."""

import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

_TEXTS: Final = frozenset({"error_message", "batch_index_error_message", "documentation"})
_HIDDEN: Final = frozenset({"port", "cluster_id", "log_dir", "throttle_time"})
"""Fields of each broker's own."""
_NUMBERED: Final = frozenset({"session_id", "total_bytes", "usable_bytes"})
"""Numbers of a broker's choice or of its machine, where they are not 0 or -1."""
_ORDERED: Final = frozenset({"synonyms"})
"""Arrays whose order says something; the others come out of hash maps."""
_MEMBER_ID: Final = re.compile(r".+-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHORT_MEMBER_ID: Final = re.compile(r"[\w-]{22}")
"""As Kafka makes them in groups of the consumer protocol."""
_IDENTITIES: Final = (
    "name",
    "topic",
    "topic_id",
    "group_id",
    "key",
    "resource_type",
    "resource_name",
    "partition_index",
    "partition",
    "index",
    "node_id",
    "broker_id",
    "api_key",
    "source",
    "member_id",
    "group_instance_id",
    "producer_id",
)
"""Fields that tell the items of an array apart."""


class Normaliser:
    """Makes the answers of one broker comparable; remembers what it called the identities in them."""

    def __init__(self) -> None:
        self.topic_names: dict[uuid.UUID, str] = {}
        self._members: dict[str, str] = {}

    def __call__(self, value: Any, field: str = "") -> Any:
        if isinstance(value, Mapping):
            return {name: self(each, name) for name, each in value.items()}
        if isinstance(value, list):
            items = [self(each, field) for each in value]
            has_order = field in _ORDERED or not items or not isinstance(items[0], dict)
            return items if has_order else sorted(items, key=_identity)
        if field in _HIDDEN:
            return f"<{field}>"
        if field in _TEXTS:
            return "<text>" if value else value
        if field in _NUMBERED:
            return value if value in (0, -1) else f"<{field}>"
        if field == "log_append_time":
            return value if value == -1 else "<now>"
        if isinstance(value, uuid.UUID):
            return f"<id of {self.topic_names.get(value, 'an unknown topic')}>"
        is_short_id = field == "member_id" and isinstance(value, str) and _SHORT_MEMBER_ID.fullmatch(value)
        if is_short_id or (isinstance(value, str) and _MEMBER_ID.fullmatch(value)):
            return self._members.setdefault(value, f"<member {len(self._members) + 1}>")
        return value


def _identity(item: dict[str, Any]) -> list[str]:
    values = (item[name] for name in _IDENTITIES if name in item)
    return [str(each).rjust(12) if isinstance(each, int) else str(each) for each in values]


def _label(place: int, kafka: Any, headrace: Any) -> str:
    """What two items of an array are called in a path: their first identity, or else their place."""
    if isinstance(kafka, dict) and isinstance(headrace, dict):
        identity = _identity(kafka)
        if identity and identity == _identity(headrace):
            return identity[0].strip()
    return str(place)


def differences(kafka: Any, headrace: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """`(path, Kafka's value, Headrace's value)` of every field that is not the same."""
    if isinstance(kafka, dict) and isinstance(headrace, dict) and kafka.keys() == headrace.keys():
        return [found for name in kafka for found in differences(kafka[name], headrace[name], f"{path}.{name}")]
    if isinstance(kafka, list) and isinstance(headrace, list) and len(kafka) == len(headrace):
        return [
            found
            for place, pair in enumerate(zip(kafka, headrace, strict=True))
            for found in differences(*pair, f"{path}[{_label(place, *pair)}]")
        ]
    return [] if kafka == headrace else [(path, kafka, headrace)]
