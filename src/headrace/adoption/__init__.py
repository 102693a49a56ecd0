"""Data that Kafka left: KRaft metadata, a ZooKeeper tree, directories without metadata, and the way back to Kafka."""
