"""Adopt Kafka's data (KRaft metadata, ZooKeeper trees, or directories without metadata), and hand it back to Kafka."""
