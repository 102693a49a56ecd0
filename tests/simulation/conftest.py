import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_logging() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
