"""Schemas of the requests between a controller and its brokers in ZooKeeper mode, which kio does not have.

Built from the JSON definitions in Kafka's branch 3.9, one version per API: the one that Kafka 3.4 to 3.9 sends.
"""
