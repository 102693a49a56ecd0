"""Spark Structured Streaming over Headrace: pure transforms, and jobs that wire them to sources, sinks and checkpoints.

Talks to a cluster only as a client, over the wire: Spark through its own Kafka connector, this side through
confluent-kafka. Everything that needs pyspark is imported late, for it comes with the extra `headrace[pipeline]` only.
"""
