"""Random requests of several producers to the transaction coordinator."""

import uuid

import pytest

from tests.parity.both import Both
from tests.parity.random_transactions import compare_random_requests


@pytest.fixture(scope="module")
def topic(session_both: Both) -> str:
    return session_both.create(f"transactional-{uuid.uuid4().hex[:8]}", 2)


@pytest.mark.parametrize("seed", range(40))
def test_random_requests_get_equal_answers(both: Both, topic: str, seed: int) -> None:
    compare_random_requests(both, topic, seed)
