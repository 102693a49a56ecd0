"""An array of an answer whose items are made while it is encoded: a large answer then never exists as a whole."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Items(Sequence[Any], Generic[T]):
    """`make` of every one of `sources`, made anew each time it is asked for. It may be made in any later turn of the
    event loop: `make` answers for what is gone by then.
    """

    __slots__ = ("_make", "_sources")

    def __init__(self, sources: Sequence[T], make: Callable[[T], Any]) -> None:
        self._sources = sources
        self._make = make

    def __len__(self) -> int:
        return len(self._sources)

    def __iter__(self) -> Iterator[Any]:
        return map(self._make, self._sources)

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._make(source) for source in self._sources[index]]
        return self._make(self._sources[index])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # as of every other sequence that is compared by its items


def made_of(sources: Sequence[T], make: Callable[[T], Any], *, few: int = 16) -> Sequence[Any]:
    """`make` of all `sources`: a list of as many as are made in no time, else Items."""
    return [make(source) for source in sources] if len(sources) <= few else Items(sources, make)
