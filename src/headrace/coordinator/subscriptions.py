"""What members of the consumer protocol subscribe to: topics by name, and by regular expression (KIP-848).

Kafka reads expressions with RE2/J, whose matching time grows with the length of the text alone. Python's `re` has no
such bound, so of what both understand only that is let in which cannot take long on a topic's name.
"""

import hashlib
import re
import re._constants as sre  # type: ignore[import-not-found]  # private: the only parser of Python's expressions
import re._parser as sre_parser  # type: ignore[import-not-found]
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from headrace.errors import ErrorCode, KafkaError

_MAX_PATTERN: Final = 1000
_MAX_UNBOUNDED: Final = 4
"""Repetitions without an upper bound, one behind the other: each multiplies the time by the length of the name."""
_MAX_REPEAT: Final = 1000
"""RE2's limit for counted repetitions."""
_REPEATS: Final = (sre.MAX_REPEAT, sre.MIN_REPEAT)
_NOT_IN_RE2: Final = {
    sre.GROUPREF: "it refers back to a group",
    sre.GROUPREF_EXISTS: "it depends on a group",
    sre.ASSERT: "it looks ahead or behind",
    sre.ASSERT_NOT: "it looks ahead or behind",
    getattr(sre, "POSSESSIVE_REPEAT", None): "it has a possessive repetition",
    getattr(sre, "ATOMIC_GROUP", None): "it has an atomic group",
}


class Topics(Protocol):
    """What topics there are."""

    @property
    def version(self) -> int:
        """Grows whenever a topic or a partition is added or removed."""

    def topic_names(self) -> Iterable[str]: ...

    def describe(self, topic: str) -> tuple[bytes, int] | None:
        """Id (16 bytes) and number of partitions; None where it does not exist."""

    def name_of(self, topic_id: bytes) -> str | None:
        """None where it does not exist."""


@lru_cache(maxsize=1024)
def compiled(regex: str) -> "re.Pattern[str]":
    """Raises KafkaError(invalid_regular_expression) with the reason."""
    try:
        if len(regex) > _MAX_PATTERN:
            raise ValueError(f"it is longer than {_MAX_PATTERN} characters")
        _check(sre_parser.parse(regex), is_repeated=False, unbounded=[])
        return re.compile(regex)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise KafkaError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{regex[:_MAX_PATTERN]}` is not a valid regular expression: {error}.",
        ) from error


def matching(regex: str, topics: Topics) -> tuple[str, ...]:
    """The topics whose whole name the expression matches, sorted."""
    pattern = compiled(regex)
    return tuple(sorted(name for name in topics.topic_names() if pattern.fullmatch(name)))


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A signed 64-bit number that changes when one of the topics does; 0 where none of them exists."""
    existing = [(name, description) for name in sorted(names) if (description := topics.describe(name)) is not None]
    if not existing:
        return 0
    digest = hashlib.blake2b(digest_size=8)
    for name, (topic_id, partition_count) in existing:
        digest.update(b"%b\0%b%d\0" % (name.encode(), topic_id, partition_count))
    return int.from_bytes(digest.digest(), "big", signed=True)


def _check(parsed: Sequence[tuple[Any, Any]], *, is_repeated: bool, unbounded: list[None]) -> None:
    """Raises ValueError for what RE2 does not have, and for what may take long here."""
    for operator, argument in parsed:
        if operator in _NOT_IN_RE2:
            raise ValueError(_NOT_IN_RE2[operator])
        if operator in _REPEATS:
            _, most, repeated = argument
            is_unbounded = most is sre.MAXREPEAT
            if not is_unbounded and most > _MAX_REPEAT:
                raise ValueError(f"it repeats more than {_MAX_REPEAT} times")
            if is_unbounded:
                unbounded.append(None)
                if len(unbounded) > _MAX_UNBOUNDED:
                    raise ValueError(f"it has more than {_MAX_UNBOUNDED} repetitions without an upper bound")
            if is_repeated and most > 1:
                raise ValueError("it has a repetition inside of a repetition")
            _check(repeated, is_repeated=is_repeated or most > 1, unbounded=unbounded)
        elif operator is sre.SUBPATTERN:
            _check(argument[-1], is_repeated=is_repeated, unbounded=unbounded)
        elif operator is sre.BRANCH:
            for branch in argument[1]:
                _check(branch, is_repeated=is_repeated, unbounded=unbounded)
