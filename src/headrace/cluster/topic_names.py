"""Valid and reserved names of topics."""

import re
from typing import Final

from headrace.errors import ErrorCode, KafkaError

GROUP_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({GROUP_OFFSETS, TRANSACTION_STATE, "__share_group_state"})
"""Topics that only brokers write; clients see them flagged as internal."""
RESERVED: Final = "__cluster_metadata"
MAX_LENGTH: Final = 249
"""The name of a partition's directory is the topic, a hyphen and up to five digits; file systems allow 255 bytes."""
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def validate(name: str) -> None:
    """Raise KafkaError(INVALID_TOPIC_EXCEPTION) if a topic may not have that name."""
    if not name:
        raise _invalid("the empty string is not allowed")
    if name in (".", ".."):
        raise _invalid(f"'{name}' is not allowed")
    if len(name) > MAX_LENGTH:
        raise _invalid(f"'{name[:40]}...' has {len(name)} characters; at most {MAX_LENGTH} are allowed")
    if not _LEGAL.fullmatch(name):
        raise _invalid(f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'")


def is_valid(name: str) -> bool:
    try:
        validate(name)
    except KafkaError:
        return False
    return True


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: {reason}")
