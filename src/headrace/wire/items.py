"""Arrays whose items are created while the reply is encoded, so that they never exist all at once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Items(Sequence[Any], Generic[T]):
    """The results of `make` for all `sources`, computed again on every access.

    Items may be accessed in a later iteration of the event loop, so `make` must handle sources that no longer exist.
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

    __hash__ = None  # type: ignore[assignment]  # like other mutable sequences


def made_of(sources: Sequence[T], make: Callable[[T], Any], *, few: int = 16) -> Sequence[Any]:
    """Return the results of `make` for all `sources`: a list for up to `few`, else `Items`."""
    return [make(source) for source in sources] if len(sources) <= few else Items(sources, make)
