"""Parameters of jobs: values from TOML and from `--set JOB.PARAM=VALUE`, checked against the job's dataclass.

Knows neither files nor the command line; every error names the job, the parameter and the allowed values.
"""

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, NewType, get_args, get_origin, get_type_hints

from headrace.pipeline.errors import PipelineError
from headrace.pipeline.spec.jobs import Job

Interval = NewType("Interval", str)
"""A parameter such as '10 minutes': text that Spark's functions accept as an interval."""

_UNITS: Final = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_PART: Final = re.compile(rf"(\d+)\s+({'|'.join(_UNITS)})s?", re.IGNORECASE)
_INTERVAL: Final = re.compile(rf"{_PART.pattern}(?:\s+{_PART.pattern})*", re.IGNORECASE)
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")
_NUMBERS: Final[Mapping[Any, str]] = {int: "a whole number", float: "a number"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A parameter of a job, as shown to users; `allowed` describes its values."""

    name: str
    allowed: str
    default: object


def seconds_of(interval: str) -> float:
    """Return the length of an interval such as '1 hour 30 minutes'. Raises ValueError if it is invalid.

    Months and years are invalid: they have no fixed length.
    """
    if _INTERVAL.fullmatch(interval.strip()) is None:
        raise ValueError(interval)
    return sum(int(number) * _UNITS[unit.lower()] for number, unit in _PART.findall(interval))


def known(job: Job) -> tuple[Param, ...]:
    """Return the parameters of a job. Raises PipelineError for an unsupported type."""
    hints, defaults = get_type_hints(job.params), job.params()
    return tuple(
        Param(
            name=field.name,
            allowed=_allowed(job, field.name, hints[field.name]),
            default=getattr(defaults, field.name),
        )
        for field in fields(job.params)
    )


def build(job: Job, values: Mapping[str, object]) -> Any:
    """Return the job's parameters: `values`, and defaults for the rest. Raises PipelineError for an invalid value."""
    return job.params(**{name: checked(job, name, value) for name, value in values.items()})


def checked(job: Job, name: str, value: object) -> object:
    """Return a value from TOML, converted to the parameter's type. Raises PipelineError if it does not fit."""
    hint = _type_of(job, name)
    if hint is float and type(value) is int:
        return float(value)
    if get_origin(hint) is Literal:
        fits = any(value == arg and type(value) is type(arg) for arg in get_args(hint))
    elif hint is Interval:
        fits = isinstance(value, str) and _is_positive(value)
    else:
        # An int is not accepted as a bool, nor a bool as an int.
        fits = type(value) is hint and (not isinstance(value, float) or math.isfinite(value))
    if not fits:
        raise _wrong(job, name, hint, value)
    return value


def parsed(job: Job, name: str, text: str) -> object:
    """Parse the value of a parameter in `--set JOB.PARAM=VALUE`. Raises PipelineError."""
    hint = _type_of(job, name)
    if get_origin(hint) is Literal:
        for arg in get_args(hint):
            if str(arg) == text:
                return arg
        raise _wrong(job, name, hint, text)
    if hint is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise _wrong(job, name, hint, text)
        return text.lower() in _TRUE
    if hint in _NUMBERS:
        try:
            return checked(job, name, hint(text.replace("_", "")))
        except ValueError:
            raise _wrong(job, name, hint, text) from None
    return checked(job, name, text)


def overrides(jobs: Mapping[str, Job], texts: Iterable[str]) -> dict[str, dict[str, object]]:
    """Parse the values of `--set`, each `JOB.PARAM=VALUE`, into values by job and parameter. Raises PipelineError."""
    found: dict[str, dict[str, object]] = {}
    for text in texts:
        target, equals, value = text.partition("=")
        job_name, dot, name = target.strip().rpartition(".")
        if not equals or not dot or not job_name or not name:
            raise PipelineError(f"--set {text}: write JOB.PARAM=VALUE, for example --set sessions.gap='10 minutes'")
        if job_name not in jobs:
            raise PipelineError(f"--set {text}: {unknown('job', job_name, jobs)}")
        found.setdefault(job_name, {})[name] = parsed(jobs[job_name], name, value.strip())
    return found


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """Return the error message for an unknown name, with a similar name and all known names."""
    names = list(names)
    near = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean '{near[0]}'?" if near else ""
    listed = f" Known {kind}s: {', '.join(sorted(names))}." if names else f" There are no {kind}s."
    return f"there is no {kind} '{name}'.{guess}{listed}"


def _type_of(job: Job, name: str) -> Any:
    hints = get_type_hints(job.params)
    names = [field.name for field in fields(job.params)]
    if name in names:
        _allowed(job, name, hints[name])
        return hints[name]
    if name in ("topic", "trigger", "max_rows"):
        raise PipelineError(
            f"job {job.name}: '{name}' is not a parameter: set it under [jobs.{job.name}] in the deployment file"
        )
    if not names:
        raise PipelineError(f"job {job.name} has no parameters, so '{name}' cannot be set")
    raise PipelineError(f"job {job.name}: {unknown('parameter', name, names)}")


def _allowed(job: Job, name: str, hint: Any) -> str:
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(arg) for arg in get_args(hint))
    if hint is Interval:
        return "an interval such as '10 minutes'"
    if hint is bool:
        return "true or false"
    if hint is str:
        return "text"
    if hint in _NUMBERS:
        return _NUMBERS[hint]
    shown = getattr(hint, "__name__", str(hint))
    raise PipelineError(
        f"job {job.name}: parameter {name} has the type {shown}; use str, int, float, bool, Interval or Literal"
    )


def _is_positive(interval: str) -> bool:
    try:
        return seconds_of(interval) > 0
    except ValueError:
        return False


def _wrong(job: Job, name: str, hint: Any, value: object) -> PipelineError:
    return PipelineError(f"job {job.name}: parameter {name} must be {_allowed(job, name, hint)}, not {value!r}")
