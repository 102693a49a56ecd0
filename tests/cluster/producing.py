"""Write records to a topic, and wait until all in-sync replicas have them."""

from confluent_kafka import Producer


def produce(bootstrap: str, topic: str, *values: bytes, partitions: int = 1, idempotent: bool = True) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": idempotent})
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % partitions,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(30) == 0
    assert not failed


def values_of(prefix: str, count: int = 100) -> list[bytes]:
    return [b"%s %d" % (prefix.encode(), number) for number in range(count)]
