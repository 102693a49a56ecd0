"""Headrace beside Apache Kafka on this machine: `python -m bench`, or `make bench`.

Every row is measured on both brokers in turn, several times, and judged by the ratio. The load comes from clients that
neither project can be suspected of favouring: Kafka's own tools, librdkafka, and a raw socket.
"""
