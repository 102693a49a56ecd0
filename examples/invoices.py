"""The work that the three programs share: every order becomes an invoice.

    headrace topics create orders --partitions 2
    headrace topics create invoices --partitions 2
    python examples/exactly_once.py --bootstrap localhost:9092

Compare the loops of `at_most_once.py`, `at_least_once.py` and `exactly_once.py`; docs/delivery-guarantees.md explains
what a crash does to each.
"""

import argparse
import json

from confluent_kafka import Consumer, KafkaException, Message

ORDERS = "orders"
INVOICES = "invoices"
BATCH = 10


def invoice(order: Message) -> bytes:
    """Return the invoice for an order, `{"order": NUMBER, "cents": AMOUNT}`, including tax."""
    fields = json.loads(order.value() or b"{}")
    return json.dumps({"order": fields["order"], "cents": round(fields["cents"] * 1.2)}).encode()


def subscribe(bootstrap: str, group: str) -> Consumer:
    """Return a consumer of the orders, without automatic commits."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            # A crashed member keeps its partitions for this long.
            "session.timeout.ms": 6000,
        }
    )
    consumer.subscribe([ORDERS])
    return consumer


def next_batch(consumer: Consumer) -> list[Message]:
    """Return the orders that arrive within 0.5 s, at most `BATCH`. Raises KafkaException for a permanent error."""
    orders = []
    for message in consumer.consume(BATCH, timeout=0.5):
        error = message.error()
        if error is None:
            orders.append(message)
        elif not error.retriable():
            raise KafkaException(error)
    return orders


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Turns orders into invoices until it is stopped.")
    parser.add_argument("--bootstrap", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--group", default="invoicing")
    return parser.parse_args()
