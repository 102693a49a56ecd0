"""Turn orders into invoices at least once: a crash may duplicate invoices, but never loses one."""

import sys

from confluent_kafka import KafkaError, Message, Producer
from invoices import INVOICES, arguments, invoice, next_batch, subscribe


def delivered(error: KafkaError | None, _: Message) -> None:
    if error is not None:
        sys.exit(f"cannot write an invoice: {error}; a restart repeats the orders since the last commit")


options = arguments()
consumer = subscribe(options.bootstrap, options.group)
producer = Producer({"bootstrap.servers": options.bootstrap, "enable.idempotence": True})

while True:
    orders = next_batch(consumer)
    if not orders:
        continue
    for order in orders:
        producer.produce(INVOICES, invoice(order), order.key(), on_delivery=delivered)
    producer.flush()
    # The orders count as done only now: after a crash before this line, the successor repeats them.
    consumer.commit(asynchronous=False)
