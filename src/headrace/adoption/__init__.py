"""Adopt data of Kafka: KRaft metadata, ZooKeeper trees, directories without metadata; and hand it back to Kafka."""
