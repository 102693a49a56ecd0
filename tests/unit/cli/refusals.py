from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from headrace.cli.failures import CommandError

T = TypeVar("T", bound=Hashable)


def wrong_reasons(
    reasons: Mapping[T, str], use: Callable[[T], object], error: type[Exception] = CommandError
) -> dict[T, str]:
    """Return the input for which `use` does not fail for the given reason, with what it says instead."""
    wrong = {}
    for given, reason in reasons.items():
        try:
            use(given)
        except error as raised:
            said = str(raised)
        else:
            said = "accepted"
        if reason not in said:
            wrong[given] = said
    return wrong
