"""Ratios and verdicts from the samples of both brokers."""

import pytest

from bench import report
from bench.rows import Outcome, outcomes


def judged(key: str, headrace: list[float], kafka: list[float]) -> Outcome:
    (outcome,) = outcomes({key: headrace}, {key: kafka})
    return outcome


def test_the_ratio_is_the_median_of_the_ratios_per_round() -> None:
    outcome = judged("produce-small.rate", [100.0, 10.0, 30.0], [50.0, 10.0, 10.0])

    assert outcome.ratio == 2.0
    assert outcome.headrace == 30.0
    assert outcome.is_met


def test_every_kind_of_bound_is_judged() -> None:
    def is_met(key: str, headrace: float, kafka: float) -> bool | None:
        return judged(key, [headrace], [kafka]).is_met

    assert is_met("produce-large.rate", 99.0, 100.0) is False
    assert is_met("consume.rate", 96.0, 100.0)  # the client is the limit
    assert is_met("produce-small.cpu-from-start", 0.51, 1.0) is False
    assert is_met("produce-small.cpu-from-start", 0.49, 1.0)
    assert is_met("start.seconds", 0.31, 2.0) is False
    assert is_met("start.seconds", 0.29, 2.0)
    assert is_met("consume.cpu", 9.0, 1.0) is None


def test_a_row_without_kafka_has_no_ratio() -> None:
    (outcome,) = outcomes({"sync.p99": [0.1]}, {})

    assert (outcome.kafka, outcome.ratio, outcome.is_met) == (None, None, None)


def test_the_json_report_has_every_row_with_its_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "machine", lambda: "a machine")  # it runs `uname`
    headrace, kafka = {"sync.p99": [0.1, 0.2]}, {"sync.p99": [0.4, 0.4]}

    shown = report.as_object(outcomes(headrace, kafka), headrace, kafka)

    assert shown["rows"] == [
        {
            "key": "sync.p99",
            "title": "p99",
            "unit": "ms",
            "headrace": 0.15000000000000002,
            "kafka": 0.4,
            "ratio": 0.375,
            "floor": "<= 0.7",
            "met": True,
            "samples": {"headrace": [0.1, 0.2], "kafka": [0.4, 0.4]},
        }
    ]
