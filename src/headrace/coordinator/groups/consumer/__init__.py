"""The consumer protocol of KIP-848: ConsumerGroupHeartbeat."""
