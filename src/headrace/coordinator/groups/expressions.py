"""Match topics against the regular expressions of consumers, with RE2, the C++ original of Kafka's engine.

RE2 matches in time linear in the length of the name, but may need a millisecond. With many names and expressions this
adds up, so results are cached and calls have time limits.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import ErrorCode, KafkaError

MAX_LENGTH: Final = 10_000
"""Maximum length of an expression (characters)."""
MAX_UNICODE_CLASSES: Final = 100
r"""Maximum number of classes such as `\pL` in an expression: RE2 needs 0.3 ms and 30 KB for each, before it checks the
size of the compiled expression."""
_MAX_MEMORY: Final = 512 * 1024
"""Memory (bytes) of a compiled expression, including matching. RE2's cache keeps up to 128 expressions."""
_MAX_NAMES: Final = 1_000_000
"""Maximum number of names in all cached results."""
_MAX_RESULTS: Final = 1_000
_WINDOW_S: Final = 0.1
_SHARE_S: Final = 0.005
"""Time that requests may spend on matching in any `_WINDOW_S`; `work` does the rest."""
_GROUP_NAME: Final = re.compile(r"\(\?P?<(\w+)>")


def compiled(regex: str) -> Any:
    """Compile an expression. Raises KafkaError(invalid_regular_expression) with RE2's reason."""
    try:
        import re2  # only when the first expression is used
    except ModuleNotFoundError:
        raise _invalid(regex, "unsupported by this broker: the package google-re2 is not installed") from None
    if len(regex) > MAX_LENGTH:
        raise _invalid(regex, f"longer than {MAX_LENGTH} characters")
    _check_syntax(regex)
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.log_errors = False  # they would go to standard error
    options.never_capture = True
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b"cannot be compiled"
        raise _invalid(regex, reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None


def _check_syntax(regex: str) -> None:
    r"""Raise KafkaError for too many Unicode classes, and for syntax that RE2 supports in C++ but not in Java: `\C` and
    duplicate group names.
    """
    names = _GROUP_NAME.findall(regex)
    if len(names) > len(set(names)):
        raise _invalid(regex, "duplicate capture group name")
    unicode_classes = 0
    position = regex.find("\\")
    while position >= 0:
        escaped = regex[position + 1 : position + 2]
        if escaped == "C":
            raise _invalid(regex, "invalid escape sequence: \\C")
        unicode_classes += escaped in {"p", "P"}
        if unicode_classes > MAX_UNICODE_CLASSES:
            raise _invalid(regex, f"more than {MAX_UNICODE_CLASSES} Unicode classes")
        end = regex.find("\\E", position) if escaped == "Q" else position
        position = -1 if end < 0 else regex.find("\\", end + 2)


def _invalid(regex: str, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_regular_expression,
        f"SubscribedTopicRegex `{regex[:MAX_LENGTH]}` is not a valid regular expression: {reason}.",
    )


def matching(regex: str, names: Collection[str]) -> tuple[str, ...]:
    """Return the names that match the expression as a whole, sorted."""
    expression = compiled(regex)
    return tuple(sorted(name for name in names if expression.fullmatch(name.encode())))


@dataclass(slots=True)
class _Result:
    """The matches `found` among the first `seen` names."""

    seen: int = 0
    found: list[str] = field(default_factory=list)
    removals: int = 0


class TopicExpressions:
    """Caches the topics that match expressions, and matches only new names.

    `clock` returns seconds; `report` is called if RE2 rejects an expression that is stored in a group's records.
    """

    def __init__(self, clock: Callable[[], float], report: Callable[[KafkaError], None]) -> None:
        self._clock = clock
        self._report = report
        self._results: OrderedDict[str, _Result] = OrderedDict()
        self._pending: dict[str, None] = {}
        self._names: list[str] = []
        """In order of appearance; some may have been removed."""
        self._known: set[str] = set()
        self._removals = 0
        """Increases when names are removed."""
        self._version = -1
        self._window_ends = 0.0
        self._share_left = 0.0

    def matching(self, regex: str, version: int, names: Callable[[], Collection[str]]) -> tuple[str, ...] | None:
        """Return the names that match, sorted; None while `work` has to match more names.

        `names` returns all names, which do not change while `version` is the same.
        """
        if version != self._version:
            self._update_names(names())
            self._version = version
        result = self._results.setdefault(regex, _Result(removals=self._removals))
        self._results.move_to_end(regex)
        now = self._clock()
        if now >= self._window_ends:
            self._window_ends = now + _WINDOW_S
            self._share_left = _SHARE_S
        if not self._is_complete(result):
            self._advance(regex, result, now + self._share_left)
            self._share_left -= self._clock() - now
            self._evict()
        if not self._is_complete(result):
            self._pending[regex] = None
            return None
        return tuple(result.found)

    def work(self, seconds: float) -> bool:
        """Match pending names for about `seconds`. Return True if some remain."""
        deadline = self._clock() + seconds
        while self._pending and self._clock() < deadline:
            regex = next(iter(self._pending))
            result = self._results.get(regex)
            if result is not None:
                self._advance(regex, result, deadline)
            # Take turns, so that a slow expression does not delay the others.
            del self._pending[regex]
            if result is not None and not self._is_complete(result):
                self._pending[regex] = None
        self._evict()
        return bool(self._pending)

    def _update_names(self, names: Collection[str]) -> None:
        current = set(names)
        if not self._results:
            self._names, self._known = list(names), current
            return
        self._names += [name for name in names if name not in self._known]
        if self._known - current:
            self._removals += 1
        self._known = current
        if len(self._names) > 2 * len(current) + 1000:
            self._forget_removed_names(list(names))

    def _forget_removed_names(self, names: list[str]) -> None:
        for result in self._results.values():
            if result.seen == len(self._names):
                result.seen = len(names)
            else:
                result.seen, result.found = 0, []
        self._names = names

    def _is_complete(self, result: _Result) -> bool:
        return result.seen == len(self._names) and result.removals == self._removals

    def _advance(self, regex: str, result: _Result, deadline: float) -> None:
        if self._clock() >= deadline:
            return
        if result.removals != self._removals:
            result.found = [name for name in result.found if name in self._known]
            result.removals = self._removals
        try:
            match = compiled(regex).fullmatch
        except KafkaError as error:
            self._report(error)
            result.seen = len(self._names)
            return
        before = len(result.found)
        while result.seen < len(self._names) and self._clock() < deadline:
            name = self._names[result.seen]
            result.seen += 1
            if name in self._known and match(name.encode()):
                result.found.append(name)
        if self._is_complete(result) and len(result.found) > before:
            result.found = sorted(set(result.found))

    def _evict(self) -> None:
        size = sum(len(result.found) for result in self._results.values())
        while len(self._results) > 1 and (size > _MAX_NAMES or len(self._results) > _MAX_RESULTS):
            _, oldest = self._results.popitem(last=False)
            size -= len(oldest.found)
