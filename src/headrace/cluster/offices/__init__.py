"""The shells of the controller in a cluster with ZooKeeper: elections, the term in office, channels to brokers."""
