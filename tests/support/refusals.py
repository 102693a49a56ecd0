from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

from headrace.cli.failures import CommandError

T = TypeVar("T", bound=Hashable)


def wrong_reasons(
    reasons: Mapping[T, str], use: Callable[[T], object], error: type[Exception] = CommandError
) -> dict[T, str]:
    """Return the inputs that `use` does not refuse for the expected reason, with the actual outcome."""
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
