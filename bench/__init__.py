"""Compare Headrace with Apache Kafka on this machine: `python -m bench`, or `make bench`.

Every row is measured several times on both brokers in turn, and judged by the ratio of the two. The load comes from
neutral clients: Kafka's own tools, librdkafka, and a raw socket.
"""
