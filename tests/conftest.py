"""Long tests begin first, so that no worker sits alone with one of them at the end."""

from typing import Final

import pytest

_FIRST: Final = (
    "tests/pipeline/test_exactly_once",
    "tests/adoption",
    "tests/simulation",
    "tests/pipeline",
    "tests/crashes",
    "tests/parity",
    "tests/clients",
    "tests/broker",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the random order within each of `_FIRST` and the rest."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    return next((place for place, prefix in enumerate(_FIRST) if item.nodeid.startswith(prefix)), len(_FIRST))
