"""The controller in a cluster with ZooKeeper: its election, its term in office, and its channels to brokers."""
