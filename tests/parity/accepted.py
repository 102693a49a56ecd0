"""The differences from Apache Kafka that Headrace keeps, each with its reason; docs/compatibility.md tells of them."""

import re
from dataclasses import dataclass
from typing import Any, Final

from headrace.wire.apis import ApiKey

ANYTHING: Final = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A difference at a path (a regular expression) in the answers to `apis`, in Kafka's and Headrace's own values."""

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
    among = frozenset({apis} if isinstance(apis, ApiKey) else apis)
    return Accepted(apis=among, path=path, reason=reason, **values)


_ELR: Final = "Kafka's KRaft writes min.insync.replicas down as a setting of all brokers when it formats its storage"
_CONFIGS: Final = {ApiKey.DESCRIBE_CONFIGS, ApiKey.CREATE_TOPICS}
_ALTERING: Final = {ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.ALTER_CONFIGS}
_INTERNAL_ERROR: Final = "an oversight in Kafka: the mistake is met by an exception there, and named here"


ACCEPTED: Final[tuple[Accepted, ...]] = (
    _accepted(
        "version 6, for transactions of two phases, is switched off in Kafka and answers like version 5 here",
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
        "every refusal gets a message that says why",
        {ApiKey.PRODUCE, ApiKey.DESCRIBE_PRODUCERS, ApiKey.FIND_COORDINATOR},
        r".*\.error_message",
        headrace="<text>",
    ),
    _accepted(
        "there are no share groups yet, and so no topic of their states is made",
        ApiKey.FIND_COORDINATOR,
        r"\.coordinators\[g:A+:0\]\.error_code",
        headrace="invalid_request",
    ),
    _accepted(
        "a producer id without an epoch is malformed, whatever came before it",
        ApiKey.PRODUCE,
        r".*\.error_code",
        kafka="invalid_producer_epoch",
        headrace="invalid_record",
    ),
    _accepted(
        "Kafka tells the log start offset with some refusals and not with others; it is told with all",
        ApiKey.PRODUCE,
        r".*\.log_start_offset",
        kafka=-1,
    ),
    _accepted(
        "Kafka appends a transactional batch without a producer id, and verifies nothing",
        ApiKey.PRODUCE,
        r".*\.error_code",
        kafka="none",
        headrace="invalid_record",
    ),
    _accepted(_INTERNAL_ERROR, _ALTERING, r".*\.error_message", kafka=None, headrace="<text>"),
)
