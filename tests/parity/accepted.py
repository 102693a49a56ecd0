"""The accepted differences from Apache Kafka, with their reasons; docs/compatibility.md lists them."""

import re
from dataclasses import dataclass
from typing import Any, Final

from headrace.wire.apis import ApiKey

ANYTHING: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A difference in the answers to `apis`: a path (a regular expression) and the value of either broker."""

    apis: frozenset[ApiKey]
    path: str
    reason: str
    kafka: Any = ANYTHING
    headrace: Any = ANYTHING

    def covers(self, api: ApiKey, path: str, kafka: Any, headrace: Any) -> bool:
        return (
            api in self.apis
            and re.fullmatch(self.path, path) is not None
            and self.kafka in (ANYTHING, kafka)
            and self.headrace in (ANYTHING, headrace)
        )


def _accepted(reason: str, apis: ApiKey | set[ApiKey], path: str, **values: Any) -> Accepted:
    api_set = frozenset({apis} if isinstance(apis, ApiKey) else apis)
    return Accepted(apis=api_set, path=path, reason=reason, **values)


_ELR: Final = "KRaft stores min.insync.replicas as a cluster-wide setting when it formats its storage"
_CONFIGS: Final = {ApiKey.DESCRIBE_CONFIGS, ApiKey.CREATE_TOPICS}
_ALTERING: Final = {ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS}
_INTERNAL_ERROR: Final = "Kafka fails with an internal exception; Headrace returns a specific error"


ACCEPTED: Final[tuple[Accepted, ...]] = (
    _accepted(
        "Kafka disables version 6 (two-phase commit); Headrace answers it like version 5",
        ApiKey.API_VERSIONS,
        r"\.api_keys\[22\]\.max_version",
        kafka=5,
        headrace=6,
    ),
    _accepted(_ELR, _CONFIGS, r".*\.configs\[min\.insync\.replicas\]\.(config_source|synonyms)"),
    _accepted(_ELR, ApiKey.DESCRIBE_CONFIGS, r"\.results\[4\]\.configs", headrace=[]),
    _accepted(
        "a setting that no broker has is refused, and not stored",
        _ALTERING,
        r"\.responses\[4\]\.error_code",
        kafka="none",
        headrace="invalid_request",
    ),
    _accepted(
        "a setting that no broker has is refused, and not stored",
        _ALTERING,
        r"\.responses\[4\]\.error_message",
        kafka=None,
        headrace="<text>",
    ),
    _accepted(
        _INTERNAL_ERROR,
        {*_ALTERING, ApiKey.METADATA},
        r"(.*\])?\.error_code",
        kafka="unknown_server_error",
        headrace="invalid_request",
    ),
    _accepted(
        _INTERNAL_ERROR,
        ApiKey.PRODUCE,
        r".*\.error_code",
        kafka="unknown_server_error",
        headrace="corrupt_message",
    ),
    _accepted(
        _INTERNAL_ERROR,
        ApiKey.OFFSET_FETCH,
        r"\.groups\[.*\]\.error_code",
        kafka="unknown_server_error",
        headrace="unknown_member_id",
    ),
    _accepted(
        "Headrace sends an error message with every refusal",
        {ApiKey.PRODUCE, ApiKey.DESCRIBE_PRODUCERS, ApiKey.FIND_COORDINATOR},
        r".*\.error_message",
        headrace="<text>",
    ),
    _accepted(
        "Headrace has no share groups yet, and does not create the topic of their state",
        ApiKey.FIND_COORDINATOR,
        r"\.coordinators\[g:A+:0\]\.error_code",
        headrace="invalid_request",
    ),
    _accepted(
        "a producer id without an epoch is invalid regardless of earlier batches",
        ApiKey.PRODUCE,
        r".*\.error_code",
        kafka="invalid_producer_epoch",
        headrace="invalid_record",
    ),
    _accepted(
        "Headrace sends the log start offset with every refusal; Kafka with some only",
        ApiKey.PRODUCE,
        r".*\.log_start_offset",
        kafka=-1,
    ),
    _accepted(
        "Kafka appends a transactional batch without a producer id unverified",
        ApiKey.PRODUCE,
        r".*\.error_code",
        kafka="none",
        headrace="invalid_record",
    ),
    _accepted(
        "Kafka's message of a successful update is 'NONE'",
        ApiKey.UPDATE_FEATURES,
        r"\.results\[\d+\]\.error_message",
        kafka="<text>",
        headrace=None,
    ),
    _accepted(_INTERNAL_ERROR, _ALTERING, r".*\.error_message", kafka=None, headrace="<text>"),
)
