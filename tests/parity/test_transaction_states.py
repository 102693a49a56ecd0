"""Every transactional request, with every identity, in every state of the transaction."""

from collections.abc import Callable

import pytest

from headrace.wire.apis import ApiKey
from tests.parity.both import Both
from tests.parity.transactions import REQUESTS, STATES, Producer, relevant

Names = Callable[[], str]

IDENTITIES: dict[str, Callable[[Producer], tuple[int, int]]] = {
    "the producer": lambda producer: (producer.producer_id, producer.epoch),
    "its predecessor": lambda producer: (producer.producer_id, producer.epoch - 1),
    "its successor": lambda producer: (producer.producer_id, producer.epoch + 1),
    "another producer": lambda producer: (producer.producer_id + 100_000, producer.epoch),
    "no producer": lambda producer: (-1, -1),
}


STRICTER = {("committed", "its predecessor"), ("aborted", "its predecessor")}
"""If version 1 ended the transaction, Kafka mistakes EndTxn v5 of a fenced epoch for a retry; Headrace refuses it."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("state", STATES)
def test_answers_in_a_state(state: str, identity: str, both: Both, name: Names) -> None:
    topic = both.create(name(), 2)
    for request in REQUESTS:
        if (state, identity) in STRICTER and (request.api, request.version) == (ApiKey.END_TXN, 5):
            continue
        case = f"{request.name} by {identity} when {state}"
        transactional_id = name()
        producers = [Producer(side, transactional_id, topic) for side in both.sides]
        for producer in producers:
            STATES[state](producer)
        answers = [
            relevant(
                producer.ask(request.api, request.version, request.make(producer, *IDENTITIES[identity](producer))),
                producer,
            )
            for producer in producers
        ]
        both.compare(request.api, f"{request.api.name} v{request.version} {case}", *answers)
        if state == "timed out":  # a transaction opened by the request times out too
            for producer in producers:
                producer.wait_until_over()
        afterwards = [producer.settle() for producer in producers]
        both.compare(request.api, f"the state after {request.api.name} v{request.version} {case}", *afterwards)
