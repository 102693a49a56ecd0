"""Compare Headrace with Apache Kafka on this machine: `python -m bench`, or `make bench`.

Every row is measured on both brokers in turn, several times; the ratio counts. The load comes from neutral clients:
Kafka's own tools, librdkafka, and a raw socket.
"""
