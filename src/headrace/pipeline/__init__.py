"""Spark Structured Streaming over Headrace: transforms, and jobs that connect them to topics and tables.

The jobs are ordinary Kafka clients: they use Spark's Kafka connector and confluent-kafka. Modules that need pyspark
are imported late, because only the extra `headrace[pipeline]` installs it.
"""
