"""Proofs with real processes: moves, kills and pauses of brokers in a cluster of Kafka and Headrace."""
