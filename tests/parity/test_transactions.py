"""Random requests of several producers to the transaction coordinator."""

from tests.parity.both import Both, Names
from tests.parity.random_transactions import compare_random_requests


def test_random_requests_get_equal_answers(both: Both, name: Names) -> None:
    topic = both.create(name(), 2)
    for seed in range(40):
        compare_random_requests(both, topic, seed)
