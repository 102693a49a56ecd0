"""Schemas of the requests between the controller and brokers in ZooKeeper mode, which kio lacks.

Built from the JSON definitions in Kafka's branch 3.9, one version per API: the one that Kafka 3.4 to 3.9 sends.
"""
