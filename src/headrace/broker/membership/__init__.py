"""Run a broker as a member of a cluster with ZooKeeper: requests to and from other brokers and the controller."""
