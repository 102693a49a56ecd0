from collections.abc import Iterator
from functools import cache
from typing import Final

import pytest
import typer.main

_get_command: Final = cache(typer.main.get_command)


@pytest.fixture(scope="module", autouse=True)
def app_is_built_once() -> Iterator[None]:
    """Save time: Typer inspects the functions of all commands in every call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("typer.main.get_command", _get_command)
        patch.setattr("typer.testing._get_command", _get_command)
        yield
