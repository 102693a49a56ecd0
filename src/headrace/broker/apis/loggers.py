"""Log levels as settings of the BROKER_LOGGER resource (KIP-412)."""

import logging
from collections.abc import Collection, Sequence
from typing import Any, Final

from headrace.config.definition import did_you_mean
from headrace.errors import ErrorCode, KafkaError

ROOT: Final = "root"
_SOURCE: Final = 6
_SET, _DELETE = 0, 1
_LEVELS: Final = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}
"""Python's levels by their names in log4j, which Kafka's tools use."""


def entries(keys: Collection[str] | None) -> list[dict[str, Any]]:
    """Return the effective levels of the root logger and Headrace's loggers; only `keys`, if given."""
    return [
        {
            "name": name,
            "value": _name(_logger(name).getEffectiveLevel()),
            "read_only": False,
            "config_source": _SOURCE,
            "is_sensitive": False,
            "synonyms": (),
            "config_type": 0,
            "documentation": None,
        }
        for name in _names()
        if not keys or name in keys
    ]


def alter(changes: Sequence[tuple[str, int, str | None]], *, validate_only: bool) -> None:
    """Set or delete levels; with `validate_only`, only check. Raises KafkaError: invalid_request, invalid_config."""
    names = _names()
    for name, operation, level in changes:
        if name not in names:
            raise KafkaError(ErrorCode.invalid_config, f"Logger {name} does not exist.{did_you_mean(name, names)}")
        if operation == _SET and level not in _LEVELS:
            raise KafkaError(
                ErrorCode.invalid_config,
                f"Cannot set the log level of {name} to {level}: use one of {', '.join(_LEVELS)}.",
            )
        if operation == _DELETE and name == ROOT:
            raise KafkaError(
                ErrorCode.invalid_request,
                "Removing the log level of the root logger is not allowed; set another level.",
            )
        if operation not in (_SET, _DELETE):
            raise KafkaError(ErrorCode.invalid_request, f"The log level of {name} can only be set or deleted.")
    if not validate_only:
        for name, operation, level in changes:
            _logger(name).setLevel(_LEVELS[level] if operation == _SET and level else logging.NOTSET)


def _names() -> list[str]:
    known = logging.root.manager.loggerDict.items()
    ours = (name for name, logger in known if name.startswith("headrace") and isinstance(logger, logging.Logger))
    return [ROOT, *sorted(ours)]


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _name(level: int) -> str:
    """Return the highest log4j level that is not above `level`."""
    return max((number, name) for name, number in _LEVELS.items() if number <= max(level, 5))[1]
