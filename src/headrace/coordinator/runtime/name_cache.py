"""Cache results by names that clients choose, in bounded memory."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, TypeVar, TypeVarTuple

_MAX_CHARACTERS: Final = 256

Rest = TypeVarTuple("Rest")
R = TypeVar("R")


def cached_by_name(size: int) -> Callable[[Callable[[str, *Rest], R]], Callable[[str, *Rest], R]]:
    """Cache the last `size` results of a function whose first argument is a name.

    Results for names of more than 256 characters are not cached: clients may send names of 32 KB.
    """

    def decorate(function: Callable[[str, *Rest], R]) -> Callable[[str, *Rest], R]:
        cached = lru_cache(maxsize=size)(function)

        @wraps(function)
        def call(name: str, *rest: *Rest) -> R:
            return (cached if len(name) <= _MAX_CHARACTERS else function)(name, *rest)

        return call

    return decorate
