"""Cache results by names that clients choose, in bounded memory."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

_MAX_CHARACTERS: Final = 256

P = ParamSpec("P")
R = TypeVar("R")


def cached_by_name(size: int) -> Callable[[Callable[Concatenate[str, P], R]], Callable[Concatenate[str, P], R]]:
    """Cache the last `size` results of a function whose first argument is a name.

    Names longer than 256 characters are not cached: they may have 32 KB.
    """

    def decorate(function: Callable[Concatenate[str, P], R]) -> Callable[Concatenate[str, P], R]:
        cached = lru_cache(maxsize=size)(function)

        @wraps(function)
        def call(name: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
            return (cached if len(name) <= _MAX_CHARACTERS else function)(name, *args, **kwargs)  # type: ignore[arg-type]

        return call

    return decorate
