"""Kafka's TransactionalMessageCopier, killed during a copy: the output must equal the input."""
