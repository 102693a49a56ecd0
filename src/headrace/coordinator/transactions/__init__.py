"""Transactions: the records of `__transaction_state`, and ending what Kafka left open."""
