from dataclasses import dataclass, field
from typing import Any

import pytest

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec import params
from tests.unit.pipeline.example_jobs import JOBS, PAGE_VIEWS, SESSIONS, SessionParams, definition, sessions


def test_parameters_without_values_keep_their_defaults() -> None:
    assert params.build(SESSIONS, {}) == SessionParams()


def test_values_from_toml_replace_defaults() -> None:
    given = {"gap": "10 minutes", "minimum": 2, "share": 1, "humans_only": True, "key": "user", "label": "x"}
    built = params.build(SESSIONS, given)
    assert built == SessionParams(
        gap=params.Interval("10 minutes"), minimum=2, share=1.0, humans_only=True, key="user", label="x"
    )
    assert type(built.share) is float


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gap=10 minutes", "10 minutes"),
        ("gap=1 hour 30 minutes", "1 hour 30 minutes"),
        ("minimum=5_000", 5000),
        ("share=0.25", 0.25),
        ("share=2", 2.0),
        ("humans_only=true", True),
        ("humans_only=No", False),
        ("key=user", "user"),
        ("label=a=b", "a=b"),
        ("label=", ""),
    ],
)
def test_overrides_are_parsed_as_the_parameters_type(text: str, value: object) -> None:
    name = text.partition("=")[0]
    found = params.overrides(JOBS, [f"sessions.{text}"])
    assert found == {"sessions": {name: value}}
    assert type(found["sessions"][name]) is type(value)


def test_the_last_override_of_a_parameter_wins() -> None:
    assert params.overrides(JOBS, ["sessions.minimum=1", "sessions.minimum=2"]) == {"sessions": {"minimum": 2}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gap=10 minutes", "--set gap=10 minutes: write JOB.PARAM=VALUE"),
        ("sessions.gap", "write JOB.PARAM=VALUE"),
        ("sesions.gap=1 hour", "no job 'sesions'. Did you mean 'sessions'? Known jobs: archive, page_views, sessions"),
        ("sessions.gpa=1 hour", "job sessions: there is no parameter 'gpa'. Did you mean 'gap'? Known parameters: gap"),
        ("sessions.gap=soon", "job sessions: parameter gap must be an interval such as '10 minutes', not 'soon'"),
        ("sessions.gap=0 minutes", "an interval such as '10 minutes'"),
        ("sessions.gap=1 month", "an interval such as '10 minutes'"),
        ("sessions.gap=10minutes", "an interval such as '10 minutes'"),
        ("sessions.minimum=1.5", "parameter minimum must be a whole number, not '1.5'"),
        ("sessions.share=half", "parameter share must be a number, not 'half'"),
        ("sessions.share=nan", "parameter share must be a number"),
        ("sessions.humans_only=maybe", "parameter humans_only must be true or false, not 'maybe'"),
        ("sessions.key=host", "parameter key must be one of client, user, not 'host'"),
        ("page_views.gap=1 hour", "job page_views has no parameters"),
        ("sessions.trigger=1 second", "set it under [jobs.sessions] in the deployment file"),
    ],
)
def test_a_wrong_override_is_refused(text: str, message: str) -> None:
    with pytest.raises(PipelineError) as refused:
        params.overrides(JOBS, [text])
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "values", [{"minimum": True}, {"minimum": "1"}, {"humans_only": 1}, {"gap": 600}, {"label": 1}, {"key": "host"}]
)
def test_a_value_of_another_type_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(PipelineError, match=f"job sessions: parameter {next(iter(values))} must be"):
        params.build(SESSIONS, values)


def test_a_parameter_of_an_unsupported_type_is_named() -> None:
    @dataclass(frozen=True)
    class Odd:
        pages: list[str] = field(default_factory=list)

    with pytest.raises(PipelineError, match="job sessions: parameter pages has the type list; use str, int"):
        params.known(definition(sessions, params=Odd))


def test_parameters_are_listed_with_defaults_and_allowed_values() -> None:
    listed: list[Any] = [(param.name, param.default, param.allowed) for param in params.known(SESSIONS)]
    assert listed[0] == ("gap", "30 minutes", "an interval such as '10 minutes'")
    assert listed[4] == ("key", "client", "one of client, user")
    assert params.known(PAGE_VIEWS) == ()


@pytest.mark.parametrize(
    ("interval", "seconds"),
    [("10 seconds", 10), ("1 Hour", 3600), ("2 days 12 hours", 216_000), ("500 milliseconds", 0.5), ("0 seconds", 0)],
)
def test_intervals_have_a_length(interval: str, seconds: float) -> None:
    assert params.seconds_of(interval) == seconds
