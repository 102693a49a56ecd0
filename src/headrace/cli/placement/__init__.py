"""Where the replicas of a cluster are, and moves between brokers: planned here, requested over the Kafka protocol."""
