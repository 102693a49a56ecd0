"""Every transactional request, with every identity, in every state of the transaction."""

from collections.abc import Callable

import pytest

from headrace.wire.apis import ApiKey
from tests.parity.both import Both, Names
from tests.parity.transactions import REQUESTS, STATES, Producer, relevant

IDENTITIES: dict[str, Callable[[Producer], tuple[int, int]]] = {
    "the producer": lambda producer: (producer.producer_id, producer.epoch),
    "its predecessor": lambda producer: (producer.producer_id, producer.epoch - 1),
    "its successor": lambda producer: (producer.producer_id, producer.epoch + 1),
    "another producer": lambda producer: (producer.producer_id + 100_000, producer.epoch),
    "no producer": lambda producer: (-1, -1),
}


# Replies to other identities hardly depend on the state; those to strangers, only on whether the id is known.
STATES_FOR_OTHERS = ("ongoing", "committed by version 2")
STATES_FOR_STRANGERS = (*STATES_FOR_OTHERS, "unknown")
STRANGERS = ("another producer", "no producer")
SIMILAR = ("ongoing again", "ongoing again by version 2", "restarted", "aborted by version 2")
"""States that random requests in `test_transactions.py` lead to, too."""
CASES = [
    pytest.param(
        state,
        identity,
        marks=[pytest.mark.slow]
        if state in SIMILAR or not (identity == "the producer" or state in STATES_FOR_OTHERS)
        else [],
        id=f"{state}-{identity}",
    )
    for state in STATES
    for identity in IDENTITIES
    if state in STATES_FOR_STRANGERS or identity not in STRANGERS
]
STRICTER = {("committed", "its predecessor"), ("aborted", "its predecessor")}
"""If version 1 ended the transaction, Kafka mistakes EndTxn v5 of a fenced epoch for a retry; Headrace refuses it."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("state", "identity"), CASES)
def test_answers_in_a_state(state: str, identity: str, both: Both, name: Names) -> None:
    topic = both.create(name(), 2)
    requests = [
        request
        for request in REQUESTS
        if (state, identity) not in STRICTER or (request.api, request.version) != (ApiKey.END_TXN, 5)
    ]
    # a transaction per request; those that time out do so together
    producers = {
        request: [Producer(side, f"{topic}-{place}", topic) for side in both.sides]
        for place, request in enumerate(requests)
    }
    everyone = [producer for pair in producers.values() for producer in pair]

    def wait_until_over() -> None:
        if state == "timed out":
            for producer in everyone:
                producer.wait_until_over()

    for producer in everyone:
        STATES[state](producer)
    wait_until_over()
    for request, pair in producers.items():
        answers = [
            relevant(
                producer.ask(request.api, request.version, request.make(producer, *IDENTITIES[identity](producer))),
                producer,
            )
            for producer in pair
        ]
        both.compare(request.api, f"{request.name} v{request.version} by {identity} when {state}", *answers)
    # a transaction opened by a request times out too
    wait_until_over()
    for request, pair in producers.items():
        case = f"the state after {request.name} v{request.version} by {identity} when {state}"
        both.compare(request.api, case, *[producer.settle() for producer in pair])
