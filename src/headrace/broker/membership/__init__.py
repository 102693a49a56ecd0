"""Run a broker as a member of a cluster that Kafka's controller commands, over ZooKeeper."""
