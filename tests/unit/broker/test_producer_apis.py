from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from headrace.broker.apis.producers import ProducersApi
from headrace.server.context import ClientInfo, RequestContext
from headrace.storage.log.producers.producer_snapshot import ProducerEntry
from headrace.wire.apis import ApiKey, response_reader, schema

PARTITIONS = 3
PRODUCERS = 2000


class Replicas:
    """Replicas with the same producers in every partition."""

    def __init__(self) -> None:
        self.calls = 0

    def get(self, *_: object) -> Any:
        return self

    def packed_producers(self) -> list[bytes]:
        self.calls += 1
        return [ProducerEntry(number, 0, number, number, 0, 1, -1, -1).packed() for number in range(PRODUCERS)]


@pytest.fixture
def replicas() -> Replicas:
    return Replicas()


def described(replicas: Replicas) -> Any:
    client = ClientInfo(listener="PLAINTEXT", host="192.0.2.9", port=7, local_address=("192.0.2.1", 9092))
    context = RequestContext(int(ApiKey.DESCRIBE_PRODUCERS), 0, 1, "me", client)
    topic = SimpleNamespace(name="t", topic_id=UUID(int=1), partition_indexes=range(PARTITIONS))
    api = ProducersApi(replicas, None, None)  # type: ignore[arg-type]
    return api.describe_producers(context, SimpleNamespace(topics=[topic]))


def test_producers_are_looked_up_while_the_response_is_encoded(replicas: Replicas) -> None:
    reply = described(replicas)
    assert replicas.calls == 0

    out = bytearray()
    steps = schema(ApiKey.DESCRIBE_PRODUCERS, 0).encode_in_steps(out, reply)
    assert sum(1 for _ in steps) > PARTITIONS * PRODUCERS
    response, size = response_reader(ApiKey.DESCRIBE_PRODUCERS, 0)(bytes(out), 0)

    assert size == len(out)
    (topic,) = response.topics
    assert [len(partition.active_producers) for partition in topic.partitions] == [PRODUCERS] * PARTITIONS
    assert [producer.last_sequence for producer in topic.partitions[0].active_producers] == list(range(PRODUCERS))
