"""Real, unmodified Kafka clients against a started broker."""
