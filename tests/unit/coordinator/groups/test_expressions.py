"""Regular expressions of consumers are matched by RE2 in bounded time and memory."""

import time

import pytest

from headrace.coordinator.groups import expressions
from headrace.coordinator.groups.expressions import (
    MAX_LENGTH,
    MAX_UNICODE_CLASSES,
    TopicExpressions,
    compiled,
    matching,
)
from headrace.errors import ErrorCode, KafkaError
from tests.support.speed import cpu_limit, slowness

EVIL = ["(?:aa|a)" * 45 + "#", "a?" * 28 + "b", ".{0,249}" * 6 + "#"]
"""Python's `re` would practically never finish."""
UNSUPPORTED = ["(", "[", "a**", "(a)\\1", "(?=a)b", "(?<!a)b", "a++", "(?>a)", r"\C", r"a\\\C", "a{1001}"]
UNSUPPORTED += ["(?P<n>a)(?P<n>b)"]
SLOW = "(?:.?){900}(a|b|0)#"
"""RE2 needs milliseconds."""
NAME = "a" * 249


class Clock:
    """A clock that advances by `step` seconds per call."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Names:
    def __init__(self, *names: str, step: float = 0.0) -> None:
        self.names = list(names)
        self.version = 0
        self.reported: list[str] = []
        self.expressions = TopicExpressions(Clock(step), lambda error: self.reported.append(str(error)))

    def set(self, *names: str) -> None:
        self.names = list(names)
        self.version += 1

    def matching(self, regex: str) -> tuple[str, ...] | None:
        return self.expressions.matching(regex, self.version, lambda: self.names)

    def finished(self, regex: str) -> tuple[str, ...]:
        while (found := self.matching(regex)) is None:
            while self.expressions.work(0.01):
                pass
        return found


def refused(regex: str) -> str:
    with pytest.raises(KafkaError) as raised:
        compiled(regex)
    assert raised.value.code is ErrorCode.invalid_regular_expression
    return str(raised.value)


def test_an_expression_matches_whole_names() -> None:
    names = ["orders", "orders_eu", "old_orders"]
    assert matching("orders.*", names) == ("orders", "orders_eu")
    assert matching("orders", names) == ("orders",)
    assert matching("^(old|new)_[a-z]+$", names) == ("old_orders",)
    assert matching("(?i)ORDERS", names) == ("orders",)
    assert matching(r"\Qorders\E_\p{L}{2}", names) == ("orders_eu",)
    assert matching("ord|orders", names) == ("orders",)


def test_an_expression_with_catastrophic_backtracking_is_fast() -> None:
    with cpu_limit(2):  # backtracking does not end
        assert {regex: matching(regex, [NAME]) for regex in EVIL} == dict.fromkeys(EVIL, ())


def test_expressions_that_re2_does_not_support_are_refused() -> None:
    for regex in UNSUPPORTED:
        assert f"SubscribedTopicRegex `{regex}` is not a valid regular expression: " in refused(regex)


def test_an_escaped_single_byte_class_is_accepted() -> None:
    assert matching(r"\Q\C\E", [r"\C"]) == (r"\C",)
    assert matching(r"\\C", [r"\C"]) == (r"\C",)


def test_an_expression_that_compiles_to_megabytes_is_refused_quickly() -> None:
    for regex in ("((a{100}){100}){100}", r"\pL{249}" * 10, "[\\pL]{1000}", "(?:.?){1000}" * 20):
        with cpu_limit(1):
            refused(regex)


def test_an_expression_may_have_ten_thousand_characters() -> None:
    compiled("a" * MAX_LENGTH)
    assert "longer than 10000 characters" in refused("a" * (MAX_LENGTH + 1))


def test_many_unicode_classes_are_refused() -> None:
    compiled("|".join([r"\pL"] * MAX_UNICODE_CLASSES))
    compiled("|".join([r"\\pL"] * (MAX_UNICODE_CLASSES + 1)))
    for unicode_class in (r"\pL", r"\P{Lu}", r"[^\pN]"):
        assert "more than 100 Unicode classes" in refused("|".join([unicode_class] * (MAX_UNICODE_CLASSES + 1)))


def test_added_and_removed_names_are_noticed() -> None:
    topics = Names("a", "b1", "b2")
    assert topics.matching("b.*") == ("b1", "b2")
    topics.set("a", "b2", "b3")
    assert topics.matching("b.*") == ("b2", "b3")
    topics.set("a", "b3", "b1")
    assert topics.matching("b.*") == ("b1", "b3")
    topics.set(*(f"b{number}" for number in range(1100)))
    topics.set("b7", "c")
    assert topics.matching("b.*") == ("b7",)
    assert topics.matching("c") == ("c",)


def test_removed_names_are_forgotten() -> None:
    topics = Names("a")
    for number in range(20):
        topics.set(*(f"b{number}-{item}" for item in range(100)))
        assert len(topics.matching("b.*") or ()) == 100
    assert len(topics.expressions._names) <= 1300


def test_only_new_names_are_matched_after_a_change() -> None:
    topics = Names(*(f"t{number}" for number in range(1000)), step=0.0001)
    assert len(topics.finished("t.*")) == 1000
    topics.set(*topics.names, "t-new")
    assert len(topics.matching("t.*") or ()) == 1001


def test_a_request_matches_only_for_its_share_of_time() -> None:
    topics = Names(*(f"t{number}" for number in range(1000)), step=0.001)
    assert topics.matching("t.*") is None
    assert topics.matching("u.*") is None
    matched = sum(result.seen for result in topics.expressions._results.values())
    assert matched <= 10
    assert topics.expressions.work(0.05)
    assert topics.matching("t.*") is None
    assert len(topics.finished("t.*")) == 1000
    assert topics.finished("u.*") == ()


def test_a_slice_of_work_ends_in_time() -> None:
    expressions = TopicExpressions(time.monotonic, print)
    names = [f"{NAME[:-5]}{number:05}" for number in range(2000)]
    assert expressions.matching(SLOW, 1, lambda: names) is None
    slices = []
    for _ in range(5):
        started = time.thread_time()
        assert expressions.work(0.002)
        slices.append(time.thread_time() - started)
    # All the names take seconds.
    assert sorted(slices)[2] < 0.1 * slowness()


def test_expressions_take_turns() -> None:
    topics = Names(*(f"t{number}" for number in range(1000)), step=0.001)
    assert [topics.matching(f"[a-z]{number}") for number in range(5)] == [None] * 5
    for _ in range(10):
        topics.expressions.work(0.02)
    seen = [result.seen for result in topics.expressions._results.values()]
    assert min(seen) > 0
    assert max(seen) <= 3 * min(seen)


def test_results_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "_MAX_NAMES", 200)
    monkeypatch.setattr(expressions, "_MAX_RESULTS", 10)
    for names in (3, 60):
        topics = Names(*(f"t{number}" for number in range(names)))
        for number in range(15):
            topics.finished(f".*|{number}")
        results = topics.expressions._results.values()
        assert 0 < sum(len(result.found) for result in results) <= 200, names
        assert len(results) <= 10, names


def test_an_unsupported_expression_in_the_log_matches_nothing() -> None:
    topics = Names("a", "b")
    assert topics.matching("(?=a)a") == ()
    assert len(topics.reported) == 1
