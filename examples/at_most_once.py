"""Turn orders into invoices at most once: a crash may lose invoices, but never duplicates one."""

from confluent_kafka import Producer
from invoices import INVOICES, arguments, invoice, next_batch, subscribe

options = arguments()
consumer = subscribe(options.bootstrap, options.group)
producer = Producer({"bootstrap.servers": options.bootstrap, "enable.idempotence": True})

while True:
    orders = next_batch(consumer)
    if not orders:
        continue
    # The orders count as done before they are: after a crash, the successor begins after them.
    consumer.commit(asynchronous=False)
    for order in orders:
        producer.produce(INVOICES, invoice(order), order.key())
    producer.flush()
