"""Turn orders into invoices exactly once: invoices and offsets are committed together, or not at all."""

from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from invoices import INVOICES, ORDERS, arguments, invoice, next_batch, subscribe


def positions_after(orders: Sequence[Message]) -> list[TopicPartition]:
    """Return the offsets from which a consumer resumes after these orders."""
    ends = {order.partition(): order.offset() for order in orders}  # later orders replace earlier ones
    return [TopicPartition(ORDERS, partition or 0, (offset or 0) + 1) for partition, offset in ends.items()]


def rewind(consumer: Consumer) -> None:
    """Seek back to the committed offsets after an aborted transaction."""
    for position in consumer.committed(consumer.assignment()):
        consumer.seek(TopicPartition(ORDERS, position.partition, max(position.offset, 0)))


options = arguments()
consumer = subscribe(options.bootstrap, options.group)
# The transactional id identifies this instance: a second one with the same id would fence it.
producer = Producer({"bootstrap.servers": options.bootstrap, "transactional.id": f"{options.group}-1"})
# Aborts a transaction left open by a crash, and fences its producer in case it is still running.
producer.init_transactions()

while True:
    orders = next_batch(consumer)
    if not orders:
        continue
    producer.begin_transaction()
    try:
        for order in orders:
            producer.produce(INVOICES, invoice(order), order.key())
        producer.send_offsets_to_transaction(positions_after(orders), consumer.consumer_group_metadata())
        producer.commit_transaction()
    except KafkaException as failure:
        if not failure.args[0].txn_requires_abort():
            raise
        producer.abort_transaction()
        rewind(consumer)
