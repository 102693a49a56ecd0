"""Kafka's TransactionalMessageCopier, killed while it copies: the output must equal the input."""
