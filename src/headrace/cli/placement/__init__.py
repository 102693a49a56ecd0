"""Describe the replicas of a cluster, plan their moves between brokers, and request them over the Kafka protocol."""
