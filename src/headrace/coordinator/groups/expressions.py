"""Regular expressions of consumers, matched by RE2, the C++ sister of the engine that Kafka uses.

RE2 matches in time proportional to the name, whatever the expression. That is still up to a millisecond for a name, and
there may be many names and expressions, so results are kept, and a call works only as long as it may.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.errors import ErrorCode, KafkaError

MAX_LENGTH: Final = 10_000
"""Characters of an expression."""
_MAX_MEMORY: Final = 512 * 1024
"""Bytes of a compiled expression and of what matching adds to it. RE2's own cache keeps up to 128 of them."""
_MAX_NAMES: Final = 1_000_000
"""Names in all results that are kept."""
_MAX_RESULTS: Final = 1_000
_WINDOW_S: Final = 0.1
_SHARE_S: Final = 0.005
"""Time that answers may spend on matching in any `_WINDOW_S`; what is left to do then waits for `work`."""
_GROUP_NAME: Final = re.compile(r"\(\?P?<(\w+)>")


def compiled(regex: str) -> Any:
    """The expression, ready to match. Raises KafkaError(invalid_regular_expression) with RE2's reason."""
    try:
        import re2  # with the first expression: a broker without one does not load it
    except ModuleNotFoundError:
        raise _invalid(regex, "this broker cannot read any, as the package google-re2 is not installed") from None
    if len(regex) > MAX_LENGTH:
        raise _invalid(regex, f"longer than {MAX_LENGTH} characters")
    _refuse_what_java_lacks(regex)
    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.log_errors = False  # RE2 would write them to standard error
    options.never_capture = True
    try:
        return re2.compile(regex, options)
    except re2.error as error:
        reason = error.args[0] if error.args else b"cannot be compiled"
        raise _invalid(regex, reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None


def _refuse_what_java_lacks(regex: str) -> None:
    r"""Raise KafkaError for what RE2 has in C++ only: `\C`, a single byte, and two groups of one name."""
    names = _GROUP_NAME.findall(regex)
    if len(names) > len(set(names)):
        raise _invalid(regex, "duplicate capture group name")
    position = regex.find("\\")
    while position >= 0:
        escaped = regex[position + 1 : position + 2]
        if escaped == "C":
            raise _invalid(regex, "invalid escape sequence: \\C")
        end = regex.find("\\E", position) if escaped == "Q" else position
        position = -1 if end < 0 else regex.find("\\", end + 2)


def _invalid(regex: str, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.invalid_regular_expression,
        f"SubscribedTopicRegex `{regex[:MAX_LENGTH]}` is not a valid regular expression: {reason}.",
    )


def matching(regex: str, names: Collection[str]) -> tuple[str, ...]:
    """The names that the whole expression matches, sorted."""
    expression = compiled(regex)
    return tuple(sorted(name for name in names if expression.fullmatch(name.encode())))


@dataclass(slots=True)
class _Result:
    """`found` are the matches among the first `seen` names."""

    seen: int = 0
    found: list[str] = field(default_factory=list)
    removals: int = 0


class TopicExpressions:
    """Which topics match which expression; after a change only new names are matched.

    `clock` gives seconds; `report` is told of an expression in the log that RE2 does not take.
    """

    def __init__(self, clock: Callable[[], float], report: Callable[[KafkaError], None]) -> None:
        self._clock = clock
        self._report = report
        self._results: OrderedDict[str, _Result] = OrderedDict()
        self._pending: dict[str, None] = {}
        self._names: list[str] = []
        """In the order in which they appeared; some may be gone."""
        self._known: set[str] = set()
        self._removals = 0
        """Grows whenever names go."""
        self._version = -1
        self._window_ends = 0.0
        self._share_left = 0.0

    def matching(self, regex: str, version: int, names: Callable[[], Collection[str]]) -> tuple[str, ...] | None:
        """The names that match, sorted; None while `work` has something to do for it.

        `names` gives all there are; they are the same as long as `version` is.
        """
        if version != self._version:
            self._take(names())
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
        """Match for about as long; whether something is left to do."""
        deadline = self._clock() + seconds
        while self._pending and self._clock() < deadline:
            regex = next(iter(self._pending))
            result = self._results.get(regex)
            if result is not None:
                self._advance(regex, result, deadline)
            # In turns: an expression that takes long does not keep others waiting for its end.
            del self._pending[regex]
            if result is not None and not self._is_complete(result):
                self._pending[regex] = None
        self._evict()
        return bool(self._pending)

    def _take(self, names: Collection[str]) -> None:
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
