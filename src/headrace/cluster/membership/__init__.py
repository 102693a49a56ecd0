"""A broker as a member of a cluster with ZooKeeper: registration, dynamic settings, and topics that it creates."""
